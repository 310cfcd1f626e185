"""Priorities: what is urgent overtakes what waits, in the broker and in the worker."""

from __future__ import annotations

from typing import Any

from tests.services.place import Place, eventually

#: From most urgent to least; Redis and RabbitMQ count in opposite directions.
URGENT_FIRST = {"redis": (0, 3, 6, 9), "rabbitmq": (9, 6, 3, 0)}


def held(place: Place, task: str) -> int:
    """Return how many requests of a task the worker has, in line or in a batch."""
    reserved: Any = place.worker.ask("reserved")
    return sum(each["name"] == task for each in reserved)


def test_urgent_requests_overtake_those_in_line(place: Place):
    """
    Requests that come last and are urgent run before those that wait, who keep their order.

    A waiting request may fill the place that an urgent one leaves in its batch.
    """
    gate = place.close_gate()
    urgent, *_, patient = URGENT_FIRST[place.broker]
    early = [place.pair.apply_async((n,), priority=patient) for n in range(6)]
    place.wait_for_buffered("f.pair", 4)  # the first two lie ready behind the gate
    late = [place.pair.apply_async((n,), priority=urgent) for n in (10, 11)]
    eventually(lambda: held(place, "f.pair") == 8, "all of them in the worker")
    place.open_gate(gate)
    place.get([*early, *late])
    batches = place.batches("pair")
    items = [item for batch in batches for item in batch]
    in_line = [item for batch in batches if max(batch) < 10 for item in batch]

    assert [*range(6), 10, 11] == sorted(items)
    assert in_line == sorted(in_line)
    # Each by itself where it may leave at once, with a patient one; else both together.
    assert max(items.index(10), items.index(11)) < items.index(4)


def test_order_within_a_batch_is_by_priority(place: Place):
    """The model sees a batch's urgent items first, and equals in the order they came."""
    gate = place.close_gate()
    urgent, _, _, patient = URGENT_FIRST[place.broker]
    results = [
        place.echo.apply_async((item,), priority=urgent if item == "urgent" else patient)
        for item in ("a", "b", "urgent", "c")
    ]
    place.wait_for_buffered("f.echo", 4)
    place.open_gate(gate)
    place.get(results)

    assert ["urgent", "a", "b", "c"] == place.items("echo")
