"""States and results, item by item."""

from __future__ import annotations

import pytest
from celery.exceptions import TimeoutError as NoResult

from tests.services.shared_setup import SharedSetup, eventually

EVERY_POOL = ("prefork", "solo", "threads")


@pytest.mark.pools(*EVERY_POOL)
def test_each_item_has_its_own_state_and_result(shared: SharedSetup):
    """Within one batch an item succeeds with its value or fails with its error."""
    good, bad, fine = [shared.act.delay(word) for word in ("good", "fail", "fine")]

    assert ["GOOD", "FINE"] == shared.get([good, fine])
    with pytest.raises(ValueError, match="told to fail"):
        bad.get(timeout=30)
    assert ["SUCCESS", "FAILURE", "SUCCESS"] == [each.state for each in (good, bad, fine)]
    assert "told to fail" in bad.traceback


def test_an_unknown_id_is_pending(shared: SharedSetup):
    """A task that nobody has sent is PENDING and has no result, as in Celery."""
    unknown = shared.app.AsyncResult("nobody-sent-this")

    assert "PENDING" == unknown.state
    with pytest.raises(NoResult):
        unknown.get(timeout=0.1)


@pytest.mark.pools(*EVERY_POOL)
def test_extended_results_tell_each_items_own_story(shared: SharedSetup):
    """With ``result_extended`` name, arguments, worker, queue and retries are stored per item."""
    results = [shared.add.delay(n, y=10) for n in range(4)]
    shared.get(results)
    metas = [shared.app.backend.get_task_meta(result.id) for result in results]

    assert [[n] for n in range(4)] == [list(meta["args"]) for meta in metas]
    assert [{"y": 10}] * 4 == [meta["kwargs"] for meta in metas]
    assert {"f.add"} == {meta["name"] for meta in metas}
    assert {shared.worker.name} == {meta["worker"] for meta in metas}
    assert {shared.app.conf.task_default_queue} == {meta["queue"] for meta in metas}
    assert {0} == {meta["retries"] for meta in metas}
    assert all(meta["date_done"] for meta in metas)


def test_ignored_results_are_not_stored(shared: SharedSetup):
    """``ignore_result`` on the task, or on one call, leaves no result; the model still runs."""
    by_task = shared.quiet.delay(1)
    by_call = shared.echo.apply_async((2,), ignore_result=True)
    stored = shared.echo.delay(3)

    assert 3 == stored.get(timeout=30)
    eventually(lambda: shared.items("quiet") == [1], "the task without a result")
    eventually(lambda: set(shared.items("echo")) == {2, 3}, "both calls")
    assert ["PENDING", "PENDING"] == [
        shared.app.AsyncResult(x.id).state for x in (by_task, by_call)
    ]


@pytest.mark.pools(*EVERY_POOL)
def test_started_is_stored_for_each_item_while_the_model_runs(shared: SharedSetup):
    """With ``track_started`` every item of a running batch is STARTED, by whom and where."""
    gate = shared.unique("started")
    results = [shared.hold_many.delay(gate, n) for n in range(3)]
    shared.wait_at(gate)
    ran = len(shared.items("hold_many"))
    running = results[:ran]
    states = [result.state for result in running]
    infos = [result.info for result in running]
    for _ in results:
        shared.open_gate(gate)

    assert ["STARTED"] * ran == states
    assert {shared.worker.name} == {info["hostname"] for info in infos}
    assert {fact["pid"] for fact in shared.recall("hold_many")} >= {info["pid"] for info in infos}
    assert [0, 1, 2] == shared.get(results)


def test_results_can_be_waited_for_in_a_set(shared: SharedSetup):
    """A ``ResultSet`` joins batch tasks' results as any others, in the order they were sent."""
    results = [shared.double.delay(n) for n in range(20)]
    joined = shared.app.ResultSet(results).join_native(timeout=30)

    assert [2 * n for n in range(20)] == joined


def test_results_can_be_forgotten(shared: SharedSetup):
    """``forget`` removes an item's result and leaves its neighbours'."""
    first, second = [shared.double.delay(n) for n in (1, 2)]
    shared.get([first, second])
    first.forget()

    assert "PENDING" == shared.app.AsyncResult(first.id).state
    assert 4 == shared.app.AsyncResult(second.id).get(timeout=30)
