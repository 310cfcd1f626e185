"""A start that one call asks for, and a task's states as another process sees them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from celery.result import AsyncResult

from celery_batch.client.results.pending import PendingResults
from celery_batch.protocol import TRACK_HEADER
from tests.services.shared_setup import SOON, SharedSetup

EVERY_POOL = ("prefork", "solo", "threads")

TRACKED = {"headers": {TRACK_HEADER: True}}


def as_another_process_would(shared: SharedSetup, result: Any) -> Any:
    """Return a result of the same task that nobody here has asked for."""
    PendingResults.of(shared.app)._known.pop(result.id)
    return shared.hold_for.AsyncResult(result.id)


@pytest.mark.pools(*EVERY_POOL)
def test_one_call_can_ask_for_its_start(shared: SharedSetup):
    """Who asks for it is STARTED while the model runs, as Celery has it; the others are not."""
    gate = shared.unique("tracked")
    tracked = shared.hold_for.apply_async((gate, 1), **TRACKED)
    plain = shared.hold_for.delay(gate, 2)
    shared.wait_at(gate)
    state = next(tracked.iter_states(SOON))
    states = tracked.state, AsyncResult(tracked.id, app=shared.app).state, plain.state
    meta = shared.app.backend.get_task_meta(tracked.id)
    shared.open_gate(gate)

    assert "STARTED" == state
    assert ("STARTED", "STARTED", "PENDING") == states
    assert shared.worker.name == meta["result"]["hostname"]
    assert meta["result"]["pid"] in {fact["pid"] for fact in shared.recall("hold_for")}
    assert ([gate, 1], "f.hold_for") == (list(meta["args"]), meta["name"])
    assert [1, 2] == shared.get([tracked, plain])
    assert ["STARTED", "SUCCESS"] == list(tracked.iter_states())


def test_start_looks_as_celery_s_own(shared: SharedSetup):
    """What is stored for a call that asks is what is stored for a task that always does."""
    seen = []
    for task, options in ((shared.hold_for, TRACKED), (shared.hold_many, {})):
        gate = shared.unique("alike")
        result = task.apply_async((gate, 1), **options)
        assert "STARTED" == next(result.iter_states(SOON))
        meta = shared.app.backend.get_task_meta(result.id)
        shared.open_gate(gate)
        assert 1 == result.get(SOON)
        assert (result.id, task.name) == (meta.pop("task_id"), meta.pop("name"))
        assert [gate, 1] == list(meta.pop("args"))
        seen.append({**meta, "result": sorted(meta["result"])})

    assert seen[0] == seen[1]


def test_start_goes_through_hooks_and_chunks_too(shared: SharedSetup):
    """Also a chunk, and a task that goes through its tracer, is STARTED when its call asks."""
    gate = shared.close_gate()
    chunk = shared.rows.apply_rows(range(10), **TRACKED)
    linked = shared.echo.apply_async((1,), link=shared.plain_add.s(1), **TRACKED)
    shared.open_gate(gate)
    heard = [list(chunk.iter_states(SOON)), list(linked.iter_states(SOON))]

    assert [["STARTED", "SUCCESS"]] * 2 == heard


def test_another_try_is_followed(shared: SharedSetup):
    """A task that is tried again is followed to its end."""
    result = shared.act.apply_async((shared.unique("retry"),), **TRACKED)
    heard = list(result.iter_states(SOON))

    assert ("STARTED", "SUCCESS") == (heard[0], heard[-1])
    assert {"STARTED", "SUCCESS"} <= set(heard) <= {"STARTED", "RETRY", "SUCCESS"}


def test_ignored_result_is_not_started(shared: SharedSetup):
    """Nothing is stored of a call whose result is ignored, its start no more than its end."""
    ignored = shared.echo.apply_async((1,), ignore_result=True, **TRACKED)
    shared.echo.delay(2).get(timeout=SOON)

    assert "PENDING" == AsyncResult(ignored.id, app=shared.app).state


def test_other_process_follows_by_id(shared: SharedSetup):
    """By its id alone a task is followed from its start to its end, in a thread and in a loop."""
    gate = shared.unique("followed")
    stranger = as_another_process_would(shared, shared.hold_for.apply_async((gate, 1), **TRACKED))
    shared.wait_at(gate)

    async def follow() -> list[str]:
        """Open the gate once the start was seen, and return all states."""
        seen = []
        async for state in stranger.iter_states(SOON):
            seen.append(state)
            await asyncio.to_thread(shared.open_gate, gate)
        return seen

    assert "STARTED" == next(stranger.iter_states(SOON))
    assert ["STARTED", "SUCCESS"] == asyncio.run(follow())
    assert "SUCCESS" == list(shared.hold_for.AsyncResult(stranger.id).iter_states())[-1]
