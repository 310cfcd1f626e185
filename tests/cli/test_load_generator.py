"""The load generator sends on time, whatever becomes of the requests."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest

from celery_batch.cli.bench import LoadGenerator
from celery_batch.tuning.load_test import TIMEOUT

#: Seconds by which a busy machine may be late.
LATE = 2.9


class Result:
    """Is answered after some seconds; never for None."""

    def __init__(self, answer, after):
        self.answer, self.after = answer, after
        self.batch_info = SimpleNamespace(size=4)

    def __await__(self):
        """Wait, and raise the answer if it is an error."""
        event = asyncio.Event()
        wait = event.wait() if self.after is None else asyncio.sleep(self.after)
        yield from wait.__await__()
        if isinstance(self.answer, Exception):
            raise self.answer


class FakeTask:
    """Takes calls whose arguments say what becomes of them."""

    def __init__(self):
        self.sent, self.options = [], []

    async def aapply_async(self, args, **options):
        """Note the time."""
        self.sent.append(time.monotonic())
        self.options.append(options)
        answer, after = args
        if answer == "refused":
            raise ConnectionError("away")
        return Result(answer, after)


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    """Return how many results were deleted at a time."""
    found = []
    delete = lambda results: found.append(len(results))  # noqa: E731
    monkeypatch.setattr("celery_batch.cli.bench.forget_many", delete)
    return found


def run(task, times, rows, timeout=60.0):
    """Run a load test, and return its outcomes."""
    return asyncio.run(LoadGenerator(task, timeout).run(times, rows))


def test_no_request_waits_for_the_answers_before_it():
    """All leave at their times although nothing is answered meanwhile."""
    task, times = FakeTask(), [0.02 * n for n in range(20)]
    began = time.monotonic()
    outcomes = run(task, times, [(1, None)] * 20, timeout=3.0)
    gaps = [at - began for at in task.sent]

    assert [TIMEOUT] * 20 == [outcome.error for outcome in outcomes]
    assert all(0 < gap - at < LATE for gap, at in zip(gaps, times, strict=True))


def test_a_timeout_counts_from_the_time_of_the_request():
    """And is the latency of a request that has none, however late that is noticed."""
    (outcome,) = run(FakeTask(), [0.0], [(1, None)], timeout=0.05)

    assert outcome.error == TIMEOUT
    assert outcome.message == "no answer within 0.05 s"
    assert outcome.ended - outcome.due == pytest.approx(0.05)
    assert outcome.batch_size is None


def test_latency_begins_at_the_time_of_a_request_that_leaves_late():
    """Where this process is held up, the request has waited."""

    class Blocking(FakeTask):
        async def aapply_async(self, args, **options):
            time.sleep(0.2)  # noqa: ASYNC251 (as a slow machine does)
            return await super().aapply_async(args, **options)

    outcomes = run(Blocking(), [0.0, 0.0, 0.0], [(1, 0.0)] * 3)
    latencies = [outcome.ended - outcome.due for outcome in outcomes]

    assert all(
        latency > least for latency, least in zip(latencies, (0.19, 0.39, 0.59), strict=True)
    )
    assert [outcome.sent for outcome in outcomes] == sorted(outcome.sent for outcome in outcomes)


def test_errors_are_told_apart():
    """A refusal, a failed task and a task that raises a TimeoutError are no timeouts of ours."""
    rows = [
        ("refused", 0.0),
        (ValueError("bad"), 0.0),
        (TimeoutError("in the task"), 0.0),
        (1, 0.0),
    ]
    outcomes = run(FakeTask(), [0.0] * 4, rows)

    assert [("ConnectionError", "away"), ("ValueError", "bad")] == [
        (outcome.error, outcome.message) for outcome in outcomes[:2]
    ]
    assert (outcomes[2].error, outcomes[2].message) == ("TimeoutError", "in the task")
    assert outcomes[2].error != TIMEOUT
    assert outcomes[0].sent is None
    assert (outcomes[3].error, outcomes[3].batch_size) == ("", 4)


def test_workers_learn_when_a_request_is_given_up():
    """So they do not run what nobody waits for, and the next rate finds an empty queue."""
    task = FakeTask()
    run(task, [0.0], [(1, 0.0)], timeout=7.0)

    assert task.options == [{"expires": pytest.approx(7.0, abs=LATE)}]


def test_a_late_request_expires_when_its_time_is_up():
    """It counts from when the request was to be sent; after that it is not sent at all."""

    class Blocking(FakeTask):
        async def aapply_async(self, args, **options):
            result = await super().aapply_async(args, **options)
            time.sleep(2.0)  # noqa: ASYNC251 (as a slow machine does)
            return result

    task = Blocking()
    outcomes = run(task, [0.0, 0.0, 0.0], [(1, None)] * 3, timeout=3.9)

    assert len(task.options) == 2
    assert task.options[1]["expires"] < 2.0
    assert [TIMEOUT] * 3 == [outcome.error for outcome in outcomes]
    assert outcomes[2].sent is None
    assert outcomes[2].ended - outcomes[2].due == pytest.approx(3.9)


def test_results_are_deleted(forgotten):
    """Of all requests that have ended, at most a thousand in one command."""
    run(FakeTask(), [0.0] * 1500, [(1, 0.0)] * 1500)

    assert forgotten == [1000, 500]


def test_results_that_cannot_be_deleted_cost_no_outcome(caplog, monkeypatch):
    """Where the backend is away, or has no such command; a log line says so."""

    def forget_many(_results):
        raise NotImplementedError("backend does not implement forget.")

    monkeypatch.setattr("celery_batch.cli.bench.forget_many", forget_many)
    outcomes = run(FakeTask(), [0.0], [(1, 0.0)])

    assert [""] == [outcome.error for outcome in outcomes]
    assert "backend does not implement forget" in caplog.text
