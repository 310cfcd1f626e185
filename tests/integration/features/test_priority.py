"""Priorities: what is urgent overtakes what waits, in the broker and in the worker."""

from __future__ import annotations

from typing import Any

from tests.services.shared_setup import SharedSetup, eventually

#: From most urgent to least; Redis and RabbitMQ count in opposite directions.
URGENT_FIRST = {"redis": (0, 3, 6, 9), "rabbitmq": (9, 6, 3, 0)}


def held(shared: SharedSetup, task: str) -> int:
    """Return how many requests of a task the worker has, in line or in a batch."""
    reserved: Any = shared.worker.ask("reserved")
    return sum(each["name"] == task for each in reserved)


def test_urgent_requests_overtake_those_in_line(shared: SharedSetup):
    """
    Requests that come last and are urgent run before those that wait, who keep their order.

    A waiting request may fill the place that an urgent one leaves in its batch.
    """
    gate = shared.close_gate()
    urgent, *_, patient = URGENT_FIRST[shared.broker]
    early = [shared.pair.apply_async((n,), priority=patient) for n in range(6)]
    shared.wait_for_buffered("f.pair", 4)  # the first two lie ready behind the gate
    late = [shared.pair.apply_async((n,), priority=urgent) for n in (10, 11)]
    eventually(lambda: held(shared, "f.pair") == 8, "all of them in the worker")
    shared.open_gate(gate)
    shared.get([*early, *late])
    batches = shared.batches("pair")
    items = [item for batch in batches for item in batch]
    in_line = [item for batch in batches if max(batch) < 10 for item in batch]

    assert [*range(6), 10, 11] == sorted(items)
    assert in_line == sorted(in_line)
    # Each by itself where it may leave at once, with a patient one; else both together.
    assert max(items.index(10), items.index(11)) < items.index(4)


def test_order_within_a_batch_is_by_priority(shared: SharedSetup):
    """The model sees a batch's urgent items first, and equals in the order they came."""
    gate = shared.close_gate()
    urgent, _, _, patient = URGENT_FIRST[shared.broker]
    results = [
        shared.echo.apply_async((item,), priority=urgent if item == "urgent" else patient)
        for item in ("a", "b", "urgent", "c")
    ]
    shared.wait_for_buffered("f.echo", 4)
    shared.open_gate(gate)
    shared.get(results)

    assert ["urgent", "a", "b", "c"] == shared.items("echo")
