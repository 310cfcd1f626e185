"""Where celery_batch is installed, result backends of all processes know of stored results."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import redis
from celery import Celery

from celery_batch.payloads.results import with_stored_result
from celery_batch.processes.redis_server import RedisServer
from tests.services.setup import emptied

#: Prints whether results are read by us, whether it is once, and who has loaded the module.
REPORT = """
import celery.backends.base as base
read = base.Backend.meta_from_decoded
print(
    getattr(read, "is_ours", False),
    hasattr(read, "__wrapped__") and hasattr(read.__wrapped__, "__wrapped__"),
    type(base.__loader__).__name__,
    base.__loader__ is base.__spec__.loader,
)
"""


@pytest.mark.parametrize(
    "start",
    [
        "from celery import Celery; Celery(backend='redis://').backend",
        "from celery import Celery; Celery(backend='cache+memory://').backend",
        "from celery.backends.redis import RedisBackend",
        "import celery.backends.base, celery.backends.redis",
        "import celery.backends.base, celery_batch.task",
        "import kombu.serialization, celery.backends.base",
        "import celery_batch.task, celery.backends.base",
        "import importlib.util as u, kombu.serialization; u.find_spec('celery.backends.base')",
    ],
)
def test_whatever_is_imported_first(start: str, in_python: Callable[..., str]):
    """The backends' module is loaded as ever, and its class is changed once."""
    assert "True False SourceFileLoader True" == in_python(start + REPORT)


def test_other_finders_of_the_same_modules(in_python: Callable[..., str]):
    """Such as those of tracing libraries, which look for a module's spec again; and old ones."""
    start = """
import importlib.util, sys
class Finder:
    asks = True
    def find_spec(self, name, path=None, target=None):
        if self.asks and name.startswith("celery.backends."):
            self.asks = False
            try:
                return importlib.util.find_spec(name)
            finally:
                self.asks = True
class Old:
    find_module = lambda self, name, path=None: None
sys.meta_path.insert(0, Finder())
import kombu.serialization
sys.meta_path.insert(0, Finder())
sys.meta_path.insert(2, Old())
import celery.backends.redis
"""
    assert "True False SourceFileLoader True" == in_python(start + REPORT)


def test_without_celerys_backends(in_python: Callable[..., str]):
    """A process with kombu alone imports nothing of Celery, and finds other modules as ever."""
    code = """
import sys, kombu.serialization, wave
print(sorted({"celery", "numpy", "torch"} & {*sys.modules}))
"""
    assert "[]" == in_python(code)


#: Reads and forgets a result in a process that has an app, and no batch task.
READER = """
import sys
from celery import Celery
app = Celery("reader", backend={url!r})
app.conf.update({conf})
for use in {uses}:
    try:
        print(type(getattr(app.AsyncResult("one"), use)()).__name__)
    except Exception as error:
        print(type(error).__name__, error)
"""


@pytest.fixture
def read(redis_server: RedisServer, in_python: Callable[..., str]) -> Callable[..., str]:
    """Use a result by its id in another process, and return what that says."""
    app = Celery("worker", backend=emptied(redis_server), set_as_current=False)
    backend: Any = app.backend
    meta = {"task_id": "one", "status": "SUCCESS", "result": [np.ones(1 << 15)]}
    backend.set(backend.get_key_for_task("one"), backend.encode(with_stored_result(backend, meta)))

    def used(*uses: str, **conf: Any) -> str:
        return in_python(READER.format(url=redis_server.url, conf=conf, uses=uses))

    return used


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        ({"batch_payload_store": False}, "InvalidPayload .* has no payload store: set batch_"),
        ({"batch_payload_store": "file:///tmp/no-such-payloads"}, "InvalidPayload .* are gone or"),
        (
            {
                "batch_payload_store": "redis://127.0.0.1:1",
                "result_backend_transport_options": {"retry_policy": {"max_retries": 0}},
            },
            "OperationalError The payload store cannot be reached",
        ),
    ],
    ids=["no store", "another store", "unreachable"],
)
def test_a_result_that_cannot_be_read(read: Callable[..., str], conf: dict[str, Any], words: str):
    """The error says why."""
    assert re.match(words, read("get", **conf))


def test_a_result_is_forgotten_unread(redis_server: RedisServer, read: Callable[..., str]):
    """With what is stored beside it."""
    with redis.Redis(unix_socket_path=f"{redis_server.directory}/redis.sock") as client:
        assert [*client.scan_iter("celery-batch-payload-one*")]
        assert "NoneType" == read("forget")
        assert not [*client.scan_iter("celery-batch-payload-one*")]
        assert not client.exists("celery-task-meta-one")


def test_other_results(redis_server: RedisServer, in_python: Callable[..., str]):
    """Reading them imports nothing of ours that is not there before."""
    code = f"""
import sys
from celery import Celery
app = Celery("other", backend={redis_server.url!r})
app.backend.store_result("two", 1, "SUCCESS")
before = {{*sys.modules}}
print(app.AsyncResult("two").get(), [name for name in {{*sys.modules}} - before if "batch" in name])
"""
    assert "1 []" == in_python(code)
