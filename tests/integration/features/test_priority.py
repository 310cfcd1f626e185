"""Priorities: what is urgent overtakes what waits, in the broker and in the worker."""

from __future__ import annotations

from tests.services.place import Place

#: From most urgent to least; Redis and RabbitMQ count in opposite directions.
URGENT_FIRST = {"redis": (0, 3, 6, 9), "rabbitmq": (9, 6, 3, 0)}


def test_urgent_requests_overtake_those_in_line(place: Place):
    """Requests that come last and are urgent run before all that has not left yet."""
    gate = place.close_gate()
    urgent, *_, patient = URGENT_FIRST[place.broker]
    early = [place.pair.apply_async((n,), priority=patient) for n in range(6)]
    place.wait_for_buffered("f.pair", 4)  # the first two lie ready behind the gate
    late = [place.pair.apply_async((n,), priority=urgent) for n in (10, 11)]
    place.wait_for_buffered("f.pair", 6)
    place.open_gate(gate)
    place.get([*early, *late])

    assert [[0, 1], [10, 11], [2, 3], [4, 5]] == place.batches("pair")


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
