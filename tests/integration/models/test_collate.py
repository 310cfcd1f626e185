"""The stages of a model on a real worker: which run beside which, and what follows an error."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_batch import ChunkFailed
from celery_batch.processes.managed_process import wait_until
from celery_batch.processes.redis_server import RedisServer
from celery_batch.protocol import ROWS
from tests.apps.small_app import go_on
from tests.services.launcher import Launcher

SOON = 40.0


class Worker:
    """
    A worker with one pool process, and a client of it.

    Args:
        launcher: What starts it.
        pool: Which pool.
    """

    def __init__(self, launcher: Launcher, pool: str) -> None:
        self.launcher = launcher
        self.process = launcher.worker("tests.apps.collated", "-c", "1", "--pool", pool)
        self.client = launcher.client()

    def send(
        self,
        name: str,
        numbers: list[int],
        *,
        task: str = "watched",
        options: Any = None,
        **what: Any,
    ) -> list[Any]:
        """Send numbers of one name, which are to be one batch."""
        return [
            self.client.send_task(f"collated.{task}", ([name, what, number],), **(options or {}))
            for number in numbers
        ]

    def seen(self, name: str) -> list[Any]:
        """Return what the stages of a name's batches have seen, in order."""
        return self.launcher.facts(name)

    def hold(self, name: str) -> list[Any]:
        """Return the results of a batch that runs until `let_go`, so that others wait behind it."""
        results = self.send(name, [1, 1], predict=[f"{name} go"])
        self.wait_for(f"{name} predict")
        return results

    def let_go(self, name: str) -> None:
        """End the batch of this name."""
        go_on(self.launcher.redis, f"{name} go")

    def wait_until_idle(self) -> None:
        """Return when the worker has heard of the end of all batches of earlier tests."""

        def busy() -> str:
            replies = self.client.control.broadcast(
                "batch_status", reply=True, timeout=SOON, limit=1
            )
            ((status,),) = [reply.values() for reply in replies]
            return ", ".join(name for name, counts in status.items() if counts["running"])

        wait_until(busy, [self.process], what="an idle worker", timeout=SOON)

    def wait_for(self, place: str) -> None:
        """Return when a stage has reached this place."""
        there = lambda: self.launcher.redis.sismember("stage:places", place)  # noqa: E731
        wait_until(lambda: "" if there() else "not yet", [], what=place, timeout=SOON)


@pytest.fixture(scope="module", params=["prefork", "threads"])
def worker(
    request: pytest.FixtureRequest,
    redis_server: RedisServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Worker]:
    """A worker for all tests of this module, whose batches have names of their own."""
    with Launcher(redis_server, tmp_path_factory.mktemp("stage")) as launcher:
        yield Worker(launcher, request.param)


#: Of the pools only this one has time limits.
HAS_LIMITS = pytest.mark.parametrize("worker", ["prefork"], indirect=True)


def answers(results: list[Any]) -> list[Any]:
    """Return the results' values, or the texts of their errors."""
    found = [result.get(timeout=SOON, propagate=False) for result in results]
    return [str(each) if isinstance(each, Exception) else each for each in found]


def test_stages_of_three_batches_run_at_once(worker: Worker):
    """While `predict` runs one batch, the next is collated and the last one uncollated."""
    results = worker.hold("one")
    results += worker.send("a", [1, 2], predict=["b collate"], uncollate=["b predict"])
    results += worker.send("b", [3, 4], collate=["a predict"], predict=["a uncollate", "c collate"])
    results += worker.send("c", [5, 6], collate=["b predict"])
    worker.let_go("one")

    assert [2, 2, 2, 4, 6, 8, 10, 12] == answers(results)
    for name, numbers in {"a": [1, 2], "b": [3, 4], "c": [5, 6]}.items():
        assert [
            ["collate", True, "beside", numbers],
            ["predict", True, "models", numbers],
            ["uncollate", True, "beside", numbers],
        ] == worker.seen(name)
    (reply,) = worker.client.control.broadcast("batch_stats", reply=True, limit=1, timeout=SOON)
    ((_, stats),) = reply.items()
    assert stats["tasks"]["collated.watched"]["collate_seconds"] > 0


def test_lone_batch_goes_through_all_stages_in_one_place(worker: Worker):
    """Nothing runs beside it, so it is not handed over."""
    worker.wait_until_idle()
    assert [2, 4] == answers(worker.send("lone", [1, 2]))
    assert [
        ["collate", True, "models", [1, 2]],
        ["predict", True, "models", [1, 2]],
        ["uncollate", True, "models", [1, 2]],
    ] == worker.seen("lone")


def test_model_is_warmed_up_through_all_stages(worker: Worker):
    """Each stage has run before the worker takes tasks."""
    warm = worker.seen("warm-up")

    assert ["collate", "predict", "uncollate"] == [stage for stage, *_ in warm[:3]]
    assert [1, 1, 1, 1] in [numbers for *_, numbers in warm]


@pytest.mark.parametrize("stage", ["collate", "predict", "uncollate"])
def test_item_at_fault_fails_alone(worker: Worker, stage: str):
    """Where a batch fails beside the model or in it, the other items have their outputs."""
    first, name = f"before {stage}", f"bad {stage}"
    results = worker.hold(first)
    results += worker.send(f"{stage} running", [7, 7], predict=[f"{name} collate done"])
    results += worker.send(name, [12, 13, 14, 15], task="large", refuses=stage)
    worker.let_go(first)

    assert [2, 2, 14, 14, 24, f"{stage} refuses 13", 28, 30] == answers(results)
    assert "beside" == worker.seen(name)[0][2]


def test_requests_that_may_not_run_again_are_uncollated_at_once(worker: Worker):
    """They were acknowledged before; the item at fault is found by the model's thread."""
    results = worker.hold("early before")
    results += worker.send("early", [12, 13, 14, 15], task="early", refuses="uncollate")
    results += worker.send("early after", [1, 2, 3, 4], task="early")
    worker.let_go("early before")

    refused = "uncollate refuses 13"
    assert [2, 2, 24, refused, 28, 30, 2, 4, 6, 8] == answers(results)
    uncollated = [fact for fact in worker.seen("early") if fact[0] == "uncollate"]
    assert {"models"} == {where for _, _, where, _ in uncollated}


def test_row_of_a_chunk_that_cannot_be_uncollated_fails_alone(worker: Worker):
    """The chunk runs again with nothing beside it, and its other rows have their outputs."""
    results = worker.hold("chunk before")
    results += worker.send("chunk running", [7, 7], predict=["chunk collate done"])
    rows = [["chunk", {"refuses": "uncollate"}, number] for number in (12, 13, 14, 15)]
    chunk = worker.client.send_task("collated.large", (rows,), headers={ROWS: len(rows)})
    worker.let_go("chunk before")

    assert [2, 2, 14, 14] == answers(results)
    with pytest.raises(ChunkFailed, match=r"1 of 4 rows failed: .*uncollate refuses 13") as failed:
        chunk.get(timeout=SOON)
    assert [24, None, 28, 30] == failed.value.outputs


def test_batch_without_memory_is_collated_in_halves(worker: Worker):
    """Running out of memory beside the model counts as the model's, and is remembered."""
    results = worker.hold("roomy")
    results += worker.send("running", [7, 7], predict=["short collate done"])
    results += worker.send("short", [1, 2, 3, 4], task="large", memory=2)
    worker.let_go("roomy")

    assert [2, 2, 14, 14, 2, 4, 6, 8] == answers(results)
    collated = [numbers for stage, *_, numbers in worker.seen("short") if stage == "collate"]
    assert [[1, 2, 3, 4], [1, 2], [3, 4]] == collated


def test_request_that_expires_behind_another_batch_is_left_out(worker: Worker):
    """What is left of a batch that was collated before is collated again."""
    for seconds in (3.0, 10.0):  # on a busy machine it may expire before it is collated first
        name = f"expiring {seconds}"
        results = worker.hold(f"{name} before")
        results += worker.send(f"{name} occupied", [7, 7], predict=[f"{name} go"])
        late = worker.send(name, [1], options={"expires": seconds})
        results += worker.send(name, [2])
        worker.let_go(f"{name} before")
        worker.wait_for(f"{name} collate done")
        time.sleep(seconds)
        go_on(worker.launcher.redis, f"{name} go")

        assert [2, 2, 14, 14, 4] == answers(results)
        assert "expired" in answers(late)[0]
        collated = [numbers for stage, *_, numbers in worker.seen(name) if stage == "collate"]
        if collated[0] == [1, 2]:
            break
    assert [[1, 2], [2]] == collated


def test_only_rows_that_go_to_the_model_are_collated(worker: Worker):
    """Those with cached answers do not; those that fill the call up do."""
    assert [10, 12] == answers(worker.send("cached", [5, 6], task="fixed"))
    worker.launcher.redis.srem("stage:places", "cached collate done")  # of the first batch
    results = worker.hold("cached before")
    results += worker.send("cached running", [7, 7], predict=["cached collate done"])
    results += worker.send("cached", [5, 6, 7, 8], task="fixed")
    worker.let_go("cached before")

    assert [2, 2, 14, 14, 10, 12, 14, 16] == answers(results)
    collated = [fact for fact in worker.seen("cached") if fact[0] == "collate"]
    assert [[5, 6, 6, 6], [7, 8, 8, 8]] == [numbers for *_, numbers in collated]
    assert "beside" == collated[1][2]


@HAS_LIMITS
def test_soft_limit_strikes_before_the_rows_are_ready(worker: Worker):
    """The batch's turn has come, and its time is up: its items run again, each alone."""
    results = worker.hold("limit before")
    results += worker.send("limit running", [7, 7], predict=["slow collate"])
    limited = {"soft_time_limit": 1}
    results += worker.send("slow", [1, 2], collate=["limit over"], alone=True, options=limited)
    worker.let_go("limit before")
    log = Path(worker.process.log)
    expired = lambda: "Soft time limit (1s) exceeded" in log.read_text()  # noqa: E731
    wait_until(lambda: "" if expired() else "not yet", [worker.process], what="limit", timeout=SOON)
    go_on(worker.launcher.redis, "limit over")  # the signal comes after the line in the log

    assert [2, 2, 14, 14, 2, 4] == answers(results)
    ran = [numbers for stage, *_, numbers in worker.seen("slow") if stage == "predict"]
    assert [[1], [2]] == sorted(ran)


@HAS_LIMITS
def test_soft_limit_interrupts_collate_of_a_lone_batch(worker: Worker):
    """It is a part of the model's call there."""
    worker.wait_until_idle()
    (result,) = worker.send("stuck", [1], collate=["never"], options={"soft_time_limit": 1})

    assert "SoftTimeLimitExceeded" in answers([result])[0]
    worker.wait_for("stuck collate interrupted")
