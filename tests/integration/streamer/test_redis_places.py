"""Streamer and worker on a Redis behind TLS and a password, and on one that a Sentinel names."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_batch.errors import ConfigurationError
from celery_batch.processes.redis_server import RedisServer
from tests.integration.messages.test_sentinel import launch
from tests.services.servers.tls import TlsRedis, find_tls_redis, make_papers
from tests.services.streamer_workers import PROGRAMS, StreamerWorkers

ASKED, ANSWER = ["Happy birthday to [MASK]."], ["you"]


def ask(url: str, folder: Path) -> list[str]:
    """Return what a worker at an address answers to a streamer there."""
    workers = StreamerWorkers(url, folder)
    with workers.run("old_worker_file.py", cwd=PROGRAMS):
        return workers.streamer("").predict(ASKED)


@pytest.mark.thorough("streamers over TLS and Sentinel")
def test_tls_and_a_password(tmp_path: Path):
    """A rediss:// URL is all that either side needs; certificates are checked."""
    try:
        find_tls_redis()
    except ConfigurationError as error:
        pytest.skip(str(error))
    with TlsRedis(tmp_path, make_papers(tmp_path)) as server:
        url = server.url().replace("ssl_cert_reqs=required&", "")

        assert ANSWER == ask(url, tmp_path)


@pytest.mark.thorough("streamers over TLS and Sentinel")
def test_a_sentinel(redis_server: RedisServer, tmp_path: Path):  # noqa: ARG001 (skips without Redis)
    """A sentinel:// URL with the name of its Redis is all that either side needs."""
    main, port = launch(tmp_path, "main", "--save", "")
    config = tmp_path / "sentinel.conf"
    config.write_text(f"sentinel monitor main 127.0.0.1 {port} 1\n")
    with main:
        watcher, watching = launch(tmp_path, "sentinel", str(config), "--sentinel")
        with watcher:
            assert ANSWER == ask(f"sentinel://127.0.0.1:{watching}/0?master_name=main", tmp_path)
