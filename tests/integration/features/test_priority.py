"""Priorities: what is urgent overtakes what waits, in the broker and in the worker."""

from __future__ import annotations

from tests.services.place import Place

#: From most urgent to least; Redis and RabbitMQ count in opposite directions.
URGENT_FIRST = {"redis": (0, 3, 6, 9), "rabbitmq": (9, 6, 3, 0)}


def test_urgent_requests_overtake_those_in_line(place: Place):
    """Whatever the order they came in, buffered requests leave by priority, then by age."""
    gate = place.close_gate()
    levels = URGENT_FIRST[place.broker]
    results = []
    for rank in (3, 2, 1, 0):
        for n in range(6):
            item = [rank, n]
            results.append(place.echo.apply_async((item,), priority=levels[rank]))
    place.wait_for_buffered("f.echo", 24)
    place.open_gate(gate)
    place.get(results)
    batches = place.batches("echo")

    assert [[rank, n] for rank in (0, 1, 2) for n in range(6)][:16] == sorted(batches[0])
    assert [[2, n] for n in range(4, 6)] == sorted(x for x in batches[1] if x[0] == 2)


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
