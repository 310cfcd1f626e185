"""What an operator sees: ``inspect`` shows items, not batches."""

from __future__ import annotations

import os
from datetime import UTC, datetime

import pytest

from tests.services.shared_setup import SharedSetup, eventually


def ask(shared: SharedSetup, question: str, *args):
    """Return the worker's answer to a question of ``inspect``."""
    inspect = shared.app.control.inspect([shared.worker.name], timeout=60.0, limit=1)
    return (getattr(inspect, question)(*args) or {}).get(shared.worker.name)


@pytest.mark.pools("prefork", "threads")
def test_active_shows_every_item_of_a_running_batch(shared: SharedSetup):
    """While a batch runs, each of its items is active, with its arguments and process."""
    gate = shared.unique("gate")
    results = [shared.hold_many.delay(gate, n) for n in range(3)]
    shared.wait_at(gate)
    ran = len(shared.items("hold_many"))
    active = eventually(
        lambda: found if len(found := ask(shared, "active")) >= ran else [], "active requests"
    )
    (pid,) = {fact["pid"] for fact in shared.recall("hold_many")}
    for _ in results:
        shared.open_gate(gate)
    shared.get(results)
    again = eventually(lambda: ask(shared, "active") == [], "nobody active")

    assert {result.id for result in results[:ran]} <= {each["id"] for each in active}
    assert {"f.hold_many"} == {each["name"] for each in active}
    assert [[gate, n] for n in range(ran)] == sorted(list(each["args"]) for each in active)[:ran]
    assert all(each["time_start"] for each in active)
    assert shared.pool == "threads" or {pid} == {each["worker_pid"] for each in active}
    assert pid != os.getpid()
    assert again


@pytest.mark.pools("prefork", "threads")
def test_reserved_and_query_task_show_who_waits_in_line(shared: SharedSetup):
    """A request in line is reserved; ``query_task`` tells it from one that runs."""
    gate = shared.unique("gate")
    running = shared.hold_many.delay(gate, 0)
    shared.wait_at(gate)
    waiting = [shared.echo.delay(n) for n in range(3)]
    ids = {result.id for result in waiting}
    shared.wait_for_buffered("f.echo", 3)
    reserved = ask(shared, "reserved")
    answer = ask(shared, "query_task", [running.id, waiting[0].id, "unknown"])
    shared.open_gate(gate)
    shared.get([running, *waiting])

    assert ids == {each["id"] for each in reserved if each["name"] == "f.echo"}
    assert {running.id: "active", waiting[0].id: "reserved"} == {
        task_id: state for task_id, (state, _) in answer.items()
    }


def test_scheduled_shows_who_waits_for_its_time(shared: SharedSetup):
    """A request with an ``eta`` is scheduled until then, and not in line."""
    before = datetime.now(UTC)
    result, scheduled = shared.send_later(shared.echo)
    shared.app.control.revoke(
        result.id, reply=True, timeout=60.0, limit=1, destination=[shared.worker.name]
    )

    assert before < datetime.fromisoformat(scheduled["eta"])
    assert result.id in ask(shared, "revoked")
    shared.wait_for_nobody()


@pytest.mark.pools("prefork", "solo", "threads")
def test_stats_count_items(shared: SharedSetup):
    """``stats`` counts every item under its task's name."""
    shared.wait_for_batches("f.double")
    before = ask(shared, "stats")["total"].get("f.double", 0)
    shared.get([shared.double.delay(n) for n in range(7)])
    shared.wait_for_batches("f.double")  # it counts what a process has accepted when it hears of it
    after = ask(shared, "stats")["total"]["f.double"]

    assert 7 == after - before


def test_registered_and_queues_are_celerys_own(shared: SharedSetup):
    """``registered`` names batch tasks like any others; ``active_queues`` is as ever."""
    registered = ask(shared, "registered")
    queues = [queue["name"] for queue in ask(shared, "active_queues")]

    assert {"f.double", "f.plain_add"} <= {name.split()[0] for name in registered}
    assert [shared.app.conf.task_default_queue] == queues
