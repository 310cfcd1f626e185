"""A batch is finished while the next one's model runs, without other effects."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from celery_batch.processes.managed_process import ManagedProcess, wait_until
from celery_batch.processes.redis_server import RedisServer
from tests.apps.small_app import go_on
from tests.services.launcher import Launcher, pool_process

SOON = 40.0


def send(client: Any, name: str, *, options: dict[str, Any] | None = None, **waits: Any) -> list:
    """Send a full batch of the task, to be called by this name."""
    return [
        client.send_task("overlapped.watched", ([name, waits],), **(options or {}))
        for _ in range(2)
    ]


def answers(results: list[Any]) -> list[Any]:
    """Return the results' values or errors."""
    return [result.get(timeout=SOON, propagate=False) for result in results]


#: Those that have one place for models, and threads beside it.
POOLS = pytest.mark.parametrize("pool", ["prefork", "threads"])


def work(launcher: Launcher, *options: str, **conf: Any) -> ManagedProcess:
    """Start a worker with one pool process, or one thread."""
    return launcher.worker("tests.apps.overlapped", "-c", "1", *options, conf=conf)


def wait_for(launcher: Launcher, place: str) -> None:
    """Return when the worker has reached this place."""
    there = lambda: launcher.redis.sismember("stage:places", place)  # noqa: E731
    wait_until(lambda: "" if there() else "not yet", [], what=place, timeout=SOON)


def stop(worker: ManagedProcess) -> None:
    """Tell a worker to stop, and return when it does."""
    os.kill(worker.pid, 15)
    log = Path(worker.log)
    told = lambda: "Warm shutdown" in log.read_text()  # noqa: E731
    wait_until(lambda: "" if told() else "not told", [worker], what="shutdown", timeout=SOON)


@pytest.fixture
def fresh(redis_server: RedisServer, tmp_path: Path) -> Iterator[Launcher]:
    """An empty Redis, and a worker that ends with the test."""
    with Launcher(redis_server, tmp_path) as launcher:
        yield launcher


@POOLS
def test_model_runs_while_the_last_batch_is_finished(fresh: Launcher, pool: str):
    """Hooks of one batch wait for the next one's model, whose own hooks ran before."""
    client = fresh.client()
    results = send(client, "a", running=["b entered"], finishing=["b running"])
    results += send(client, "b", running=["a finishing"])
    work(fresh, "--pool", pool)

    assert ["a", "a", "b", "b"] == answers(results)
    ran = [fact[:3] for fact in fresh.facts("ran")]
    assert [["a", True, "models"], ["b", True, "models"]] == ran
    assert [["a", True, "beside"]] * 2 + [["b", True, "beside"]] * 2 == sorted(
        fresh.facts("finished")
    )


@POOLS
def test_next_batch_is_made_ready_while_another_is_finished(fresh: Launcher, pool: str):
    """A third batch's hooks run while the first one's results are stored, and the second runs."""
    client = fresh.client()
    results = send(client, "a", finishing=["c entered"])
    results += send(client, "b", running=["c entered"]) + send(client, "c")
    work(fresh, "--pool", pool)

    assert list("aabbcc") == answers(results)
    assert all(met for _, met, _ in fresh.facts("finished"))
    assert ["a", "b", "c"] == [name for name, *_ in fresh.facts("ran")]


@POOLS
def test_switch_keeps_batches_apart(fresh: Launcher, pool: str):
    """With `batch_overlap = False` a batch is finished before the next one begins."""
    client = fresh.client()
    results = send(client, "a") + send(client, "b")
    work(fresh, "--pool", pool, batch_overlap=False)

    assert ["a", "a", "b", "b"] == answers(results)
    assert {"models"} == {where for _, _, where in fresh.facts("finished")}


def test_soft_limit_of_another_batch_does_not_interrupt(fresh: Launcher):
    """A limit that expires while its batch is finished does not interrupt the next model."""
    client = fresh.client()
    results = send(client, "a", finishing=["limit over"], options={"soft_time_limit": 1})
    results += send(client, "b", running=["limit over"], options={"soft_time_limit": 30})
    worker = work(fresh)
    wait_for(fresh, "b running")
    log = Path(worker.log)
    expired = lambda: "Soft time limit (1s) exceeded" in log.read_text()  # noqa: E731
    wait_until(lambda: "" if expired() else "not expired", [worker], what="limit", timeout=SOON)
    go_on(fresh.redis, "limit over")

    assert ["a", "a", "b", "b"] == answers(results)
    assert [["a", True], ["b", True]] == [fact[:2] for fact in fresh.facts("ran")]


def test_soft_limit_interrupts_its_own_model(fresh: Launcher):
    """The limit of the running batch interrupts it, while another one is finished."""
    client = fresh.client()
    results = send(client, "a", finishing=["b interrupted"])
    late = send(client, "b", running=["never"], options={"soft_time_limit": 1})
    work(fresh)
    for result in late:
        with pytest.raises(Exception, match="SoftTimeLimitExceeded"):
            result.get(timeout=SOON)

    assert ["a", "a"] == answers(results)


def test_a_process_that_has_closed_its_pipe_ends_at_once(fresh: Launcher):
    """The batch behind its last one waits for no more than a new process."""
    client = fresh.client()
    first = send(client, "a", running=["both sent"])
    worker = work(fresh)
    wait_for(fresh, "a running")
    closed = client.send_task("overlapped.closing", (1,))
    went_on = send(client, "b")
    began = time.monotonic()
    go_on(fresh.redis, "both sent")

    assert ["a", "a", 1, "b", "b"] == answers([*first, closed, *went_on])
    assert time.monotonic() - began < 25  # billiard waits 30 s for what was not sent
    assert "succeeded before the worker was lost" in Path(worker.log).read_text()


def test_process_killed_between_two_batches(fresh: Launcher):
    """Batches that were finished, ran or were ready have results; later ones run once."""
    client = fresh.client()
    results = send(client, "a", finishing=["go"]) + send(client, "b", running=["go"])
    results += send(client, "c")
    worker = work(fresh)
    wait_for(fresh, "a finishing")
    wait_for(fresh, "b running")
    pool_process(worker).kill()
    go_on(fresh.redis, "go")

    assert list("aabbcc") == answers(results)
    ran = Counter(name for name, *_ in fresh.facts("ran"))
    assert {"a": 3, "b": 2, "c": 1} == ran  # lost requests run alone


def test_killing_item_is_found(fresh: Launcher):
    """An item that kills its process is found, though other batches are in the process."""
    client = fresh.client()
    results = send(client, "a", finishing=["b running"])
    bad = send(client, "b", running=["a finishing"], kills=True)
    results += send(client, "c")
    work(fresh)

    assert list("aacc") == answers(results)
    assert ["PoisonItem"] * 2 == [type(error).__name__ for error in answers(bad)]


@POOLS
def test_hook_that_exits_fails_its_own_items(fresh: Launcher, pool: str):
    """A hook that ends the process fails only its own items, and all have an end."""
    client = fresh.client()
    results = send(client, "a", finishing=["b entered"])
    bad = send(client, "b", exits=True)
    results += send(client, "c")
    work(fresh, "--pool", pool)

    assert list("aacc") == answers(results)
    assert ["PoisonItem"] * 2 == [type(error).__name__ for error in answers(bad)]


def test_warm_shutdown_finishes_the_batches_of_the_process(fresh: Launcher):
    """A stopped worker ends when each batch that reached its process has its end."""
    client = fresh.client()
    results = send(client, "a", finishing=["go"]) + send(client, "b", running=["go"])
    worker = work(fresh)
    wait_for(fresh, "a finishing")
    wait_for(fresh, "b running")
    os.kill(psutil.Process(worker.pid).children()[0].pid, 15)
    go_on(fresh.redis, "go")

    assert list("aabb") == answers(results)

    worker.stop(grace=SOON)

    assert 0 == worker.exit_code
    assert ["a", "b"] == [name for name, *_ in fresh.facts("ran")]


def test_warm_shutdown_finishes_the_batches_of_the_thread(fresh: Launcher):
    """A stopped worker ends when the batches whose models were called have their ends."""
    client = fresh.client()
    results = send(client, "a", finishing=["go"]) + send(client, "b", running=["go"])
    left = send(client, "c")
    worker = work(fresh, "--pool", "threads")
    wait_for(fresh, "a finishing")
    wait_for(fresh, "b running")
    stop(worker)
    go_on(fresh.redis, "go")

    assert list("aabb") == answers(results)

    worker.stop(grace=SOON)

    assert 0 == worker.exit_code
    work(fresh, "--pool", "threads")
    assert list("cc") == answers(left)
    assert ["a", "b", "c"] == [name for name, *_ in fresh.facts("ran")]


def test_warm_shutdown_loses_nothing_that_is_prepared(fresh: Launcher):
    """A batch that waits for the thread at a shutdown runs once, here or on the next worker."""
    client = fresh.client()
    results = send(client, "a", running=["go"])
    worker = work(fresh, "--pool", "threads")
    wait_for(fresh, "a running")
    left = send(client, "b")
    wait_for(fresh, "b entered")
    stop(worker)
    go_on(fresh.redis, "go")

    assert list("aa") == answers(results)

    worker.stop(grace=SOON)

    assert 0 == worker.exit_code
    work(fresh, "--pool", "threads")
    assert list("bb") == answers(left)
    assert ["a", "b"] == [name for name, *_ in fresh.facts("ran")]


@pytest.mark.parametrize(
    "tasks", [1, 2, pytest.param(3, marks=pytest.mark.thorough("more batches for each process"))]
)
def test_replaced_process_loses_no_batch(fresh: Launcher, tasks: int):
    """With `--max-tasks-per-child` each batch runs once, and each process runs that many."""
    client = fresh.client()
    names = [f"n{n}" for n in range(6)]
    results = [result for name in names for result in send(client, name)]
    work(fresh, f"--max-tasks-per-child={tasks}")

    assert [name for name in names for _ in range(2)] == answers(results)
    ran = fresh.facts("ran")
    assert names == [name for name, *_ in ran]
    assert [tasks] * (6 // tasks) == list(Counter(pid for *_, pid in ran).values())


def test_process_with_too_much_memory_loses_no_batch(fresh: Launcher):
    """With `worker_max_memory_per_child` each batch has results, though one is ready there."""
    client = fresh.client()
    names = [f"n{n}" for n in range(3)]
    results = [result for name in names for result in send(client, name)]
    work(fresh, worker_max_memory_per_child=1)

    assert [name for name in names for _ in range(2)] == answers(results)
    ran = fresh.facts("ran")
    assert names == [name for name, *_ in ran]
    assert len(names) == len({pid for *_, pid in ran})


@POOLS
def test_ordinary_task_has_the_process_to_itself(fresh: Launcher, pool: str):
    """An ordinary task begins when the batch before it is finished."""
    client = fresh.client()
    work(fresh, "--pool", pool)
    results = send(client, "a", running=["sent"])
    wait_for(fresh, "a running")
    results.append(client.send_task("overlapped.plain", ("plain",)))
    results += send(client, "b")
    go_on(fresh.redis, "sent")

    assert ["a", "a", "plain", "b", "b"] == answers(results)
    assert ["a", "a", "plain"] == [name for name, *_ in fresh.facts("finished") if name != "b"]


@pytest.mark.parametrize(
    ("is_killed", "acks_late"),
    [
        (False, True),
        (True, False),
        *(
            pytest.param(*both, marks=pytest.mark.thorough("a killed process and late messages"))
            for both in ((False, False), (True, True))
        ),
    ],
)
def test_next_batch_runs_where_all_of_a_waiting_one_are_revoked(
    fresh: Launcher, *, acks_late: bool, is_killed: bool
):
    """A batch of which nothing is left to run does not keep the process from later ones."""
    client = fresh.client()
    results = send(client, "a", running=["sent"])
    worker = work(fresh, task_annotations={"overlapped.watched": {"acks_late": acks_late}})
    wait_for(fresh, "a running")
    revoked = send(client, "b")
    wait_until(lambda: batches_missing(client, 2), [worker], what="b", timeout=SOON)
    ids = [result.id for result in revoked]
    client.control.broadcast("revoke", {"task_id": ids}, reply=True, limit=1, timeout=SOON)
    if is_killed:
        pool_process(worker).kill()
    go_on(fresh.redis, "sent")

    assert ["c", "c"] == answers(send(client, "c"))
    assert (["a", "a"] == answers(results)) is (acks_late or not is_killed)
    assert {"REVOKED"} == {result.state for result in revoked}


def batches_missing(client: Any, number: int) -> str:
    """Return "" once so many batches run or are ready to run."""
    replies = client.control.broadcast("batch_status", reply=True, limit=1, timeout=SOON)
    ((status,),) = [reply.values() for reply in replies]
    counts = status["overlapped.watched"]
    return "" if (counts["running"], counts["waiting"]) == (number, 0) else str(counts)
