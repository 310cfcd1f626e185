"""The bulk message path where Redis is found through a Sentinel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from celery_batch.processes.managed_process import ManagedProcess, wait_until
from celery_batch.processes.redis_server import RedisServer, find_redis_server
from tests.services.servers.ports import quiet_port
from tests.services.setup import open_setup

OPTIONS = {"master_name": "main"}


def launch(folder: Path, name: str, *options: str) -> tuple[ManagedProcess, int]:
    """Start a server of Redis' program and return it, with its port, when it answers."""
    port = quiet_port()
    (folder / name).mkdir()
    own = ("--port", str(port), "--dir", str(folder / name))
    child = ManagedProcess(
        [find_redis_server(), *options, *own, "--bind", "127.0.0.1"],
        folder / f"{name}.log",
    )

    def silent() -> str:
        try:
            with redis.Redis(port=port) as client:
                client.ping()
        except redis.ConnectionError as error:
            return str(error)
        return ""

    wait_until(silent, [child], what=name, timeout=60)
    return child, port


@pytest.fixture
def sentinel(redis_server: RedisServer, tmp_path: Path) -> Iterator[tuple[str, str]]:  # noqa: ARG001 (skips without Redis)
    """Return the URLs of a Sentinel and of the Redis that it looks after."""
    main, port = launch(tmp_path, "main", "--save", "")
    config = tmp_path / "sentinel.conf"
    config.write_text(f"sentinel monitor main 127.0.0.1 {port} 1\n")
    watcher, watching = launch(tmp_path, "sentinel", str(config), "--sentinel")
    yield f"sentinel://127.0.0.1:{watching}/0", f"redis://127.0.0.1:{port}/0"
    watcher.stop(5)
    main.stop(5)


def test_bulk_path_through_a_sentinel(sentinel: tuple[str, str], tmp_path: Path):
    """Messages are leased, answered and acknowledged as on a Redis of its own."""
    url, memory = sentinel
    names = ("broker_transport_options", "result_backend_transport_options")
    with open_setup(url, tmp_path, memory=memory) as setup:
        setup.app.conf.update(dict.fromkeys(names, OPTIONS))
        worker = setup.worker("-c", "1", conf=dict.fromkeys(names, OPTIONS))
        results = [setup.double.delay(n) for n in range(40)]

        assert [2 * n for n in range(40)] == [result.get(timeout=30) for result in results]
        with setup.memory() as client:
            assert 1 == client.zcard("unacked_due")
            unsettled = lambda: str(client.hlen("unacked") or "")  # noqa: E731
            wait_until(unsettled, [worker.child], what="nothing unacknowledged", timeout=60)
