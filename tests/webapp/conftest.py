"""Real servers for the tests of the web apps: a Redis, a worker, gunicorn and uvicorn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import pytest
from celery import Celery
from web_site import COMMANDS, Site, environ, running
from web_tasks import SEEN

from celery_batch.processes.redis_server import RedisServer, find_redis_server
from tests.conftest import need
from tests.services.forked import start
from tests.services.servers.ports import quiet_port
from tests.services.setup import CELERY

#: The apps' other servers, which are asked in the thorough run.
_OTHERS = {"flask-gevent", "django-asgi"}

KINDS = [
    pytest.param(kind, marks=pytest.mark.thorough("web apps on their other servers"))
    if kind in _OTHERS
    else kind
    for kind in COMMANDS
]

Open = Callable[..., Site]


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A Redis of the web apps' own: their worker lives in it until the session ends."""
    need(find_redis_server)
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def open_site(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Open]:
    """Start an app of some kind, once, with all that it needs or without something."""
    logs = tmp_path_factory.mktemp("sites")
    nowhere = f"redis://127.0.0.1:{quiet_port()}/0"
    environs = {
        "": environ(redis_server.url),
        "broker": environ(nowhere),
        "backend": environ(redis_server.url, nowhere, WEBAPP_NAIVE_TASK="", WEBAPP_IMAGE_TASK=""),
    }
    opened: dict[Any, Site] = {}
    with ExitStack() as stack:

        def open_site(kind: str, without: str = "") -> Site:
            key = kind, without
            if key not in opened:
                log = logs / f"{kind}-{without}.log"
                opened[key] = stack.enter_context(running(kind, log, environs[without]))
            return opened[key]

        yield open_site


class Workers:
    """
    The worker behind the apps, and what its model has seen.

    Args:
        url: The Redis.
        log: The worker's log.
    """

    def __init__(self, url: str, log: Path) -> None:
        self.log = log
        self._app = Celery("tests", broker=url, backend=url, set_as_current=False)

    def __enter__(self) -> Self:
        line = [CELERY, "-A", "web_tasks", "worker", "--pool=threads", "-c4", "-n", "web@test"]
        quick = ["-l", "INFO", "--without-mingle", "--without-gossip"]
        self._child = start([*line, *quick], self.log, env=environ(self._app.conf.broker_url))
        return self

    def __exit__(self, *_exception: object) -> None:
        self._child.stop(grace=10)
        self._app.close()

    def seen(self) -> list[str]:
        """Return the texts that the model was given so far."""
        return [text.decode() for text in self._app.backend.client.lrange(SEEN, 0, -1)]

    def waiting(self) -> int:
        """Return how many calls of the task wait in its queue."""
        return self._app.backend.client.llen("web_tasks")

    def revoked(self) -> list[str]:
        """Return the ids of the calls that the worker will not run."""
        return self._app.control.inspect(["web@test"], timeout=20.0, limit=1).revoked()["web@test"]

    @contextmanager
    def drained(self) -> Iterator[None]:
        """Have the worker take nothing while the context lasts."""
        self._order("batch_drain")
        try:
            yield
        finally:
            self._order("batch_resume")

    def _order(self, command: str) -> None:
        answer = self._app.control.broadcast(command, reply=True, timeout=20.0, limit=1)
        assert "ok" in answer[0]["web@test"], answer


@pytest.fixture(scope="session")
def workers(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Workers]:
    """The worker behind the apps, which may not be ready yet."""
    with Workers(redis_server.url, tmp_path_factory.mktemp("worker") / "worker.log") as workers:
        yield workers


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Each of the apps on its server."""
    return request.param


@pytest.fixture
def site(kind: str, open_site: Open, workers: Workers) -> Site:  # noqa: ARG001
    """Each of the apps in turn, with a worker behind it."""
    site = open_site(kind)
    site.until("/readyz")
    return site
