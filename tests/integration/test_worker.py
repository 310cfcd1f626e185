"""A stock worker that serves batch tasks, on every pool."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Setup
from tests.services.shared_setup import SharedSetup

POOLS = [("-c", "1"), ("-c", "2"), ("-P", "solo"), ("-P", "threads", "-c", "2")]

#: A client that knows nothing but Celery.
STOCK_CLIENT = """
import json, sys
from celery import Celery
url = sys.argv[1]
app = Celery("client", broker=url, backend=url)
app.conf.task_default_queue = sys.argv[2]
results = [app.send_task("shop.double", (n,)) for n in range(40)]
print(json.dumps([result.get(timeout=30) for result in results]))
"""


@pytest.mark.parametrize("options", POOLS, ids=" ".join)
def test_items_are_answered_one_by_one_and_run_together(setup: Setup, options: tuple[str, ...]):
    """On each pool every request gets its own answer, from batches within their size."""
    worker = setup.worker(*options)
    results = [setup.double.delay(n) for n in range(50)]
    answers = [result.get(timeout=30) for result in results]
    batches = [fact["items"] for fact in setup.recall("double")]
    stats = worker.counted("shop.double", succeeded=50)

    assert [2 * n for n in range(50)] == answers
    assert 0 < stats["device_idle_seconds"] <= stats["seconds"] * stats["processes"]
    assert (2 if options == ("-c", "2") else 1) == stats["processes"]
    assert list(range(50)) == sorted(n for batch in batches for n in batch)
    assert max(len(batch) for batch in batches) <= 16
    assert len(batches) < 50


def test_stock_client_needs_nothing_of_ours(redis_shared: SharedSetup):
    """A plain Celery client in another process sends tasks and gets their results."""
    queue = redis_shared.app.conf.task_default_queue
    done = subprocess.run(
        [sys.executable, "-c", STOCK_CLIENT, redis_shared.url, queue],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert [2 * n for n in range(40)] == json.loads(done.stdout)


def test_ordinary_task_works_as_ever(redis_shared: SharedSetup):
    """A task without our base class shares the worker and notices nothing."""
    results = [redis_shared.plain.delay(n) for n in range(10)]
    mixed = [redis_shared.double.delay(n) for n in range(10)]

    assert list(range(1, 11)) == [result.get(timeout=30) for result in results]
    assert [2 * n for n in range(10)] == [result.get(timeout=30) for result in mixed]


def test_lone_request_does_not_wait_for_company(setup: Setup):
    """With nobody else coming, a request leaves after linger, not after max_wait."""
    worker = setup.worker("-c", "1")
    worker.ask("batch_config", task=setup.double.name, max_wait=50.0)
    setup.double.delay(1).get(timeout=40)

    assert {"idle": 1} == worker.status()["shop.double"]["reasons"]


def test_full_batches_form_under_load(setup: Setup):
    """While the pool is busy requests gather, and leave as full batches."""
    worker = setup.worker("-c", "1")
    results = setup.slow.delay_many(range(64))  # one by one, a busy machine sends as it answers
    for result in results:
        result.get(timeout=30)
    status = worker.status()["shop.slow"]

    assert 64 == status["requests"]
    assert status["reasons"]["full"] >= 4


def test_every_parameter_arrives_as_a_list(redis_shared: SharedSetup):
    """Positional, default and keyword-only arguments all become lists of one length."""
    results = [
        redis_shared.join.delay("a", "b"),
        redis_shared.join.delay("c"),
        redis_shared.join.delay("d", right="e", sep="+"),
        redis_shared.join.delay(left="f"),
    ]

    assert ["a-b", "c-!", "d+e", "f-!"] == [result.get(timeout=30) for result in results]


def test_worker_of_another_queue_notices_nothing(setup: Setup):
    """A worker that serves none of the batch tasks keeps its prefetch and loads no model."""
    worker = setup.worker("-c", "1", "-Q", "other")
    stats = worker.stats()

    assert 4 == stats["prefetch_count"]
    assert {} == worker.status()
    assert [] == setup.recall("load")


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_transport_without_an_event_loop(setup: Setup, tmp_path: Path, pool: str):
    """Where Celery has no event loop, batches leave on time by another clock."""
    folder = str(tmp_path)
    options = {"data_folder_in": folder, "data_folder_out": folder, "control_folder": folder}
    conf = {"broker_url": "filesystem://", "broker_transport_options": options}
    setup.app.conf.update(conf)
    worker = setup.worker("-P", pool, "-c", "1", conf=conf)
    results = [setup.double.delay(n) for n in range(40)]

    assert [2 * n for n in range(40)] == [result.get(timeout=30) for result in results]
    assert 40 == worker.status()["shop.double"]["requests"]
    assert worker.status()["shop.double"]["batches"] < 40
