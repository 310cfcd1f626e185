"""What an operator sees: ``inspect`` shows items, not batches."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

import pytest

from tests.services.place import Place, eventually


def ask(place: Place, question: str, *args):
    """Return the worker's answer to a question of ``inspect``."""
    inspect = place.app.control.inspect([place.worker.name], timeout=60.0, limit=1)
    return (getattr(inspect, question)(*args) or {}).get(place.worker.name)


@pytest.mark.pools("prefork", "threads")
def test_active_shows_every_item_of_a_running_batch(place: Place):
    """While a batch runs, each of its items is active, with its arguments and process."""
    gate = place.unique("gate")
    results = [place.hold_many.delay(gate, n) for n in range(3)]
    place.wait_at(gate)
    ran = len(place.items("hold_many"))
    active = eventually(
        lambda: found if len(found := ask(place, "active")) >= ran else [], "active requests"
    )
    (pid,) = {fact["pid"] for fact in place.recall("hold_many")}
    for _ in results:
        place.open_gate(gate)
    place.get(results)
    again = eventually(lambda: ask(place, "active") == [], "nobody active")

    assert {result.id for result in results[:ran]} <= {each["id"] for each in active}
    assert {"f.hold_many"} == {each["name"] for each in active}
    assert [[gate, n] for n in range(ran)] == sorted(list(each["args"]) for each in active)[:ran]
    assert all(each["time_start"] for each in active)
    assert place.pool == "threads" or {pid} == {each["worker_pid"] for each in active}
    assert pid != os.getpid()
    assert again


@pytest.mark.pools("prefork", "threads")
def test_reserved_and_query_task_show_who_waits_in_line(place: Place):
    """A request in line is reserved; ``query_task`` tells it from one that runs."""
    gate = place.unique("gate")
    running = place.hold_many.delay(gate, 0)
    place.wait_at(gate)
    waiting = [place.echo.delay(n) for n in range(3)]
    ids = {result.id for result in waiting}
    place.wait_for_buffered("f.echo", 3)
    reserved = ask(place, "reserved")
    answer = ask(place, "query_task", [running.id, waiting[0].id, "unknown"])
    place.open_gate(gate)
    place.get([running, *waiting])

    assert ids == {each["id"] for each in reserved if each["name"] == "f.echo"}
    assert {running.id: "active", waiting[0].id: "reserved"} == {
        task_id: state for task_id, (state, _) in answer.items()
    }


def test_scheduled_shows_who_waits_for_its_time(place: Place):
    """A request with an ``eta`` is scheduled until then, and not in line."""
    eta = datetime.now(UTC) + timedelta(seconds=3)
    result = place.echo.apply_async((1,), eta=eta)
    (scheduled,) = eventually(lambda: ask(place, "scheduled"), "a scheduled request")
    place.app.control.revoke(
        result.id, reply=True, timeout=60.0, limit=1, destination=[place.worker.name]
    )

    assert result.id == scheduled["request"]["id"]
    assert eta == datetime.fromisoformat(scheduled["eta"])
    assert result.id in ask(place, "revoked")
    place.wait_for_nobody()


@pytest.mark.pools("prefork", "solo", "threads")
def test_stats_count_items(place: Place):
    """``stats`` counts every item under its task's name."""
    before = ask(place, "stats")["total"].get("f.double", 0)
    place.get([place.double.delay(n) for n in range(7)])
    after = ask(place, "stats")["total"]["f.double"]

    assert 7 == after - before


def test_registered_and_queues_are_celerys_own(place: Place):
    """``registered`` names batch tasks like any others; ``active_queues`` is as ever."""
    registered = ask(place, "registered")
    queues = [queue["name"] for queue in ask(place, "active_queues")]

    assert {"f.double", "f.plain_add"} <= {name.split()[0] for name in registered}
    assert [place.app.conf.task_default_queue] == queues
