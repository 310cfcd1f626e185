"""Streamers on Redis: a server of their own, and programs that run workers as users do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from celery_batch.client.results.listener import close_listener
from celery_batch.processes.redis_server import RedisServer
from celery_batch.streamer import redis_app
from tests.services.backends import close_backend
from tests.services.servers.ports import quiet_port
from tests.services.streamer_workers import StreamerWorkers


def close_streamers() -> None:
    """Let go of what this process' streamers have opened."""
    while redis_app._apps:
        _, app = redis_app._apps.popitem()
        close_listener(app)
        close_backend(app)
        app.close()


@pytest.fixture(autouse=True)
def _own_streamers() -> Iterator[None]:
    """Each test has streamers, and connections, of its own."""
    redis_app._apps.clear()
    yield
    close_streamers()


@pytest.fixture(scope="session")
def workers_server(redis_server: RedisServer) -> Iterator[RedisServer]:
    """A Redis with a password, that no other test makes empty."""
    assert redis_server.child.exit_code is None
    with RedisServer(port=quiet_port()) as server:
        yield server


@pytest.fixture(scope="session")
def shared_workers(
    workers_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StreamerWorkers]:
    """The workers that all tests share."""
    workers = StreamerWorkers(
        f"{workers_server.url.removesuffix('/0')}/3", tmp_path_factory.mktemp("lab")
    )
    yield workers
    workers.close()


@pytest.fixture
def workers(shared_workers: StreamerWorkers, monkeypatch: pytest.MonkeyPatch) -> StreamerWorkers:
    """Workers that answer, with nothing remembered."""
    monkeypatch.setenv("TESTS_MEMORY", shared_workers.url)
    is_new = shared_workers._program is None or shared_workers._program.exit_code is not None
    assert shared_workers.program.exit_code is None
    if is_new:
        shared_workers.streamer().predict(["ready?"])
    with shared_workers.client() as client:
        if facts := client.keys("shop:*"):
            client.delete(*facts)
    return shared_workers
