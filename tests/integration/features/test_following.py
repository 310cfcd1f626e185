"""A start that one call asks for, and a task's states as another process sees them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from celery.result import AsyncResult

from celery_batch.client.results.pending import PendingResults
from celery_batch.protocol import TRACK_HEADER
from tests.services.place import SOON, Place

EVERY_POOL = ("prefork", "solo", "threads")

TRACKED = {"headers": {TRACK_HEADER: True}}


def as_another_process_would(place: Place, result: Any) -> Any:
    """Return a result of the same task that nobody here has asked for."""
    PendingResults.of(place.app)._known.pop(result.id)
    return place.hold_for.AsyncResult(result.id)


@pytest.mark.pools(*EVERY_POOL)
def test_one_call_can_ask_for_its_start(place: Place):
    """Who asks for it is STARTED while the model runs, as Celery has it; the others are not."""
    gate = place.unique("tracked")
    tracked = place.hold_for.apply_async((gate, 1), **TRACKED)
    plain = place.hold_for.delay(gate, 2)
    place.wait_at(gate)
    state = next(tracked.iter_states(SOON))
    states = tracked.state, AsyncResult(tracked.id, app=place.app).state, plain.state
    meta = place.app.backend.get_task_meta(tracked.id)
    place.open_gate(gate)

    assert "STARTED" == state
    assert ("STARTED", "STARTED", "PENDING") == states
    assert place.worker.name == meta["result"]["hostname"]
    assert meta["result"]["pid"] in {fact["pid"] for fact in place.recall("hold_for")}
    assert ([gate, 1], "f.hold_for") == (list(meta["args"]), meta["name"])
    assert [1, 2] == place.get([tracked, plain])
    assert ["STARTED", "SUCCESS"] == list(tracked.iter_states())


def test_start_looks_as_celery_s_own(place: Place):
    """What is stored for a call that asks is what is stored for a task that always does."""
    seen = []
    for task, options in ((place.hold_for, TRACKED), (place.hold_many, {})):
        gate = place.unique("alike")
        result = task.apply_async((gate, 1), **options)
        assert "STARTED" == next(result.iter_states(SOON))
        meta = place.app.backend.get_task_meta(result.id)
        place.open_gate(gate)
        assert 1 == result.get(SOON)
        assert (result.id, task.name) == (meta.pop("task_id"), meta.pop("name"))
        assert [gate, 1] == list(meta.pop("args"))
        seen.append({**meta, "result": sorted(meta["result"])})

    assert seen[0] == seen[1]


def test_start_goes_through_hooks_and_chunks_too(place: Place):
    """Also a chunk, and a task that goes through its tracer, is STARTED when its call asks."""
    gate = place.close_gate()
    chunk = place.rows.apply_rows(range(10), **TRACKED)
    linked = place.echo.apply_async((1,), link=place.plain_add.s(1), **TRACKED)
    place.open_gate(gate)
    heard = [list(chunk.iter_states(SOON)), list(linked.iter_states(SOON))]

    assert [["STARTED", "SUCCESS"]] * 2 == heard


def test_another_try_is_followed(place: Place):
    """A task that is tried again is followed to its end."""
    result = place.act.apply_async((place.unique("retry"),), **TRACKED)
    heard = list(result.iter_states(SOON))

    assert ("STARTED", "SUCCESS") == (heard[0], heard[-1])
    assert {"STARTED", "SUCCESS"} <= set(heard) <= {"STARTED", "RETRY", "SUCCESS"}


def test_ignored_result_is_not_started(place: Place):
    """Nothing is stored of a call whose result is ignored, its start no more than its end."""
    ignored = place.echo.apply_async((1,), ignore_result=True, **TRACKED)
    place.echo.delay(2).get(timeout=SOON)

    assert "PENDING" == AsyncResult(ignored.id, app=place.app).state


def test_other_process_follows_by_id(place: Place):
    """By its id alone a task is followed from its start to its end, in a thread and in a loop."""
    gate = place.unique("followed")
    stranger = as_another_process_would(place, place.hold_for.apply_async((gate, 1), **TRACKED))
    place.wait_at(gate)

    async def follow() -> list[str]:
        """Open the gate once the start was seen, and return all states."""
        seen = []
        async for state in stranger.iter_states(SOON):
            seen.append(state)
            await asyncio.to_thread(place.open_gate, gate)
        return seen

    assert "STARTED" == next(stranger.iter_states(SOON))
    assert ["STARTED", "SUCCESS"] == asyncio.run(follow())
    assert "SUCCESS" == list(place.hold_for.AsyncResult(stranger.id).iter_states())[-1]
