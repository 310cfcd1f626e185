"""Facts about the model call of each request of a batch."""

from __future__ import annotations

import json
from itertools import pairwise

from celery_batch.items.rows import CallRows, Chunk
from celery_batch.runtime.runner import BatchRun, Runner, Timing
from celery_batch.worker.dispatch.payload import Delivery
from celery_batch.worker.executor.model_call import facts_of


def delivery(name: str, arrived: float | None = 10.0) -> Delivery:
    """Return the delivery of a task of this name."""
    return Delivery(name, {"hostname": "w@here"}, b"", None, None, arrived)


def known(
    timings: list[Timing], asked: list[CallRows], *deliveries: Delivery
) -> dict[str, tuple[int, float, float]]:
    """Return size, wait and seconds by the tasks' ids."""
    found = {}
    for name, (alike, wait) in facts_of(timings, asked, deliveries).items():
        facts = json.loads(alike)
        assert "w@here" == facts.pop("worker")
        found[name] = facts["size"], wait, facts["seconds"]
    return found


def test_requests_of_one_call_share_its_facts():
    """Size and seconds are the call's, the wait counts from each request's arrival."""
    timings = [Timing(range(2), 12.0, 0.25)]
    found = known(timings, [(1,), (2,)], delivery("a", 10.0), delivery("b", 11.5))

    assert {"a": (2, 2.0, 0.25), "b": (2, 0.5, 0.25)} == found


def test_last_call_of_a_divided_batch_counts():
    """A request that ran alone in the end has the facts of that call, not of the failed one."""
    timings = [
        Timing(range(4), 11.0, 1.0),
        Timing(range(2), 12.0, 0.5),
        Timing(range(2, 4), 12.5, 0.5),
        Timing(range(2, 3), 13.0, 0.1),
        Timing(range(3, 4), 13.1, 0.2),
    ]
    found = known(timings, [(n,) for n in range(4)], *(delivery(name) for name in "abcd"))

    assert {"a": (2, 2, 0.5), "b": (2, 2, 0.5), "c": (1, 3.0, 0.1)} == {
        name: found[name] for name in "abc"
    }


def test_chunk_in_several_calls_has_their_seconds_together():
    """Its size is the largest call's, its wait that for the first."""
    timings = [Timing(range(3), 11.0, 0.5), Timing(range(3, 5), 12.0, 0.25)]
    chunk = Chunk(([1, 2, 3, 4],), 4)
    found = known(timings, [chunk, (5,)], delivery("chunk"), delivery("row"))

    assert {"chunk": (3, 1.0, 0.75), "row": (2, 2.0, 0.25)} == found


def test_unknown_facts_are_left_out():
    """There are no facts where no call ended, no call was made, or the arrival is not known."""
    timings = [Timing(range(1), 11.0, 0.5), Timing(range(1, 2), 12.0, 0.5)]
    asked: list[CallRows] = [(1,), (2,), (3,)]
    found = known(timings, asked, delivery("a"), delivery("b", None), delivery("c"))

    assert {} == facts_of([], asked, [delivery("a")])
    assert ["a"] == list(found)
    assert {} == known([Timing(range(1), 11.0, 0.5)], [(1,)], delivery("a", None))


def test_runner_times_each_of_its_calls():
    """Each call is timed, failed ones too, with its rows."""

    def predict(items: list[int]) -> list[int]:
        if 3 in items and len(items) > 1:
            raise ValueError("not in company")
        return items

    run = BatchRun(Runner(predict, "model"), [[1, 2, 3, 4]])
    run.call()
    timings = run.timings
    parts = [timing.part for timing in timings]

    assert [range(4), range(2), range(2, 4), range(2, 3), range(3, 4)] == parts
    assert all(
        0 <= first.seconds <= second.began - first.began for first, second in pairwise(timings)
    )
