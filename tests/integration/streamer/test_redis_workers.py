"""Requests and processes when workers and their supervisors die."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from celery_batch import PoisonItem
from celery_batch.processes.managed_process import wait_until
from celery_batch.processes.redis_server import RedisServer
from tests.services.servers.ports import quiet_port
from tests.services.streamer_workers import LONG, PROGRAMS, StreamerWorkers, family


def test_what_a_killed_worker_held_is_answered(workers: StreamerWorkers):
    """A worker that is killed is replaced, and loses neither its process nor its requests."""
    streamer = workers.streamer()
    ((worker, process),) = streamer.predict(["pid"])
    let_go = workers.hold(streamer)
    futures = [streamer.submit([number]) for number in range(20)]
    os.kill(worker, signal.SIGKILL)
    let_go()
    let_go()  # the requests that were held run again

    assert [[number] for number in range(20)] == [future.result(LONG) for future in futures]
    ((successor, _),) = streamer.predict(["pid"])
    assert worker != successor
    wait_until(
        lambda: f"{process} lives" if psutil.pid_exists(process) else "",
        [],
        what="the end of the killed worker's process",
        timeout=LONG,
    )


def test_a_process_that_dies_takes_no_request_along(workers: StreamerWorkers):
    """The item that kills its process fails with PoisonItem, the others are answered."""
    streamer = workers.streamer()
    let_go = workers.hold(streamer)
    futures = [streamer.submit(items) for items in (["a"], ["exit"], ["b"])]
    let_go()

    assert [["a"], ["b"]] == [futures[0].result(LONG), futures[2].result(LONG)]
    with pytest.raises(PoisonItem, match="took down the process"):
        futures[1].result(LONG)


def test_no_process_outlives_a_killed_parent(workers: StreamerWorkers):
    """When the program that runs the workers is killed, all that it has started ends."""
    workers.streamer().predict(["ready"])
    (program,) = family(workers.program.pid)[:1]
    below = family(program.pid)
    program.kill()
    gone, alive = psutil.wait_procs(below, timeout=LONG)

    assert [] == alive
    assert len(gone) >= 2


def test_threads_of_a_program_keep_workers_on_gpus_of_their_own(workers: StreamerWorkers):
    """Each worker sees the GPU that its own thread has named, and no other."""
    with workers.run("threads_file.py", cwd=PROGRAMS):
        about = [workers.streamer(prefix).predict(["about"])[0][:3] for prefix in ("left", "right")]

    assert [["left nobody", "4", "4"], ["right nobody", "5", "5"]] == about


def test_a_restarted_redis_is_found_again(
    shared_workers: StreamerWorkers, tmp_path: Path, monkeypatch
):
    """Streamer and worker go on after a restart, and what waited meanwhile is answered."""
    place = {"port": quiet_port(), "appendonly": True}
    with RedisServer(tmp_path / "redis", **place) as server:
        workers = StreamerWorkers(server.url, shared_workers.folder)
        monkeypatch.setenv("TESTS_MEMORY", server.url)
        streamer = workers.streamer("")
        with workers.run("old_worker_file.py", cwd=PROGRAMS) as worker:
            assert ["you"] == streamer.predict(["Happy birthday to [MASK]."])
            before = streamer.submit(["?"])
            server.stop()
            server.start()
            after: list[str] = []

            def missing() -> str:
                with suppress(Exception):  # a connection of the pool may have to break first
                    after.extend(streamer.predict(["Happy birthday to [MASK]."]))
                return "" if after else "no answer"

            wait_until(missing, [worker], what="an answer", timeout=LONG)

            assert ["you"] == after
            assert ["?"] == before.result(LONG)
