"""service-streamer's tutorials on Redis, in our words, with the import changed."""

from __future__ import annotations

import pytest

from celery_batch.processes.managed_process import ManagedProcess, wait_until
from celery_batch.processes.redis_server import RedisServer
from tests.services.streamer_workers import LONG, PROGRAMS, StreamerWorkers

SAID = "['little', 'you', 'universe']\n200 200\n"


@pytest.fixture
def empty_workers(workers_server: RedisServer, shared_workers: StreamerWorkers) -> StreamerWorkers:
    """A database where no worker is yet; the programs' default Redis."""
    workers = StreamerWorkers(f"{workers_server.url.removesuffix('/0')}/5", shared_workers.folder)
    with workers.client() as client:
        client.flushdb()
    return workers


def ask(workers: StreamerWorkers, worker: ManagedProcess, *arguments: str) -> str:
    """Return what the client's program says."""
    with workers.run("client_file.py", *arguments, cwd=PROGRAMS) as client:

        def missing() -> str:
            return "" if client.exit_code is not None else "the client waits"

        wait_until(missing, [worker], what="answers", timeout=LONG)
        return client.log.read_text()


#: Other tests here start workers in the same ways.
_THOROUGH = pytest.mark.thorough("a tutorial's programs with each way to start workers")


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("manager_file.py", ()),
        pytest.param("worker_file.py", (), marks=_THOROUGH),
        pytest.param("forever_file.py", ("channel_1",), marks=_THOROUGH),
    ],
)
def test_programs_of_the_tutorials(
    empty_workers: StreamerWorkers, program: str, arguments: tuple[str, ...]
):
    """Workers and a client, as the tutorials have them, find each other and agree."""
    with empty_workers.run(program, cwd=PROGRAMS) as worker:
        said = ask(empty_workers, worker, *arguments)
        worker.stop(20)

    assert SAID == said
    assert 0 == worker.exit_code
