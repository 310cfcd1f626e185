"""What crosses to a pool process arrives as it was sent, and what is alike crosses once."""

from __future__ import annotations

from typing import Any

import pytest
from billiard.reduction import ForkingPickler
from hypothesis import given
from hypothesis import strategies as st

from celery_batch.worker.dispatch.payload import BatchPayload, Delivery

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
REQUESTS = st.dictionaries(st.sampled_from("abcd"), VALUES)


def delivery(task_id: str, **request: Any) -> Delivery:
    """Return what a stock message becomes."""
    return Delivery(task_id, request, b"[[1], {}, {}]", "application/json", "utf-8")


def crossed(payload: BatchPayload) -> Any:
    """Return what arrives at the other end."""
    return ForkingPickler.loads(bytes(ForkingPickler.dumps(payload)))


def told_apart(value: Any) -> str:
    """Return a text that tells apart what is equal but not the same: 1, 1.0 and True."""
    return repr(value)


@given(st.lists(REQUESTS, max_size=4))
def test_requests_arrive_as_they_were(requests: list[dict[str, Any]]):
    """Names, their order, values and their types, whatever differs between them."""
    payload = BatchPayload(delivery(str(n), **request) for n, request in enumerate(requests))

    assert told_apart(list(payload)) == told_apart(crossed(payload))


@pytest.mark.parametrize(
    "values",
    [(1, True), (0, False), (0, 0.0), ("", None), ([], {}), ([1], [True]), ({}, {"a": 1})],
    ids=repr,
)
def test_what_is_only_equal_is_not_shared(values: tuple[Any, ...]):
    """A neighbour's value never takes the place of one of another type."""
    payload = BatchPayload(delivery(str(n), flag=value) for n, value in enumerate(values))

    assert told_apart(list(payload)) == told_apart(crossed(payload))


def test_nothing_is_shared_that_could_be_changed():
    """A task that changes its request changes nobody else's."""
    payload = BatchPayload(
        delivery(str(n), stamps={}, properties={"priority": 0}) for n in range(2)
    )
    first, second = crossed(payload)
    first.request["properties"]["priority"] = 9
    first.request["stamps"]["mine"] = 1

    assert {"stamps": {}, "properties": {"priority": 0}} == second.request


def test_what_is_alike_crosses_once():
    """Sixty-four alike take little more than the parts in which they differ."""
    request = dict.fromkeys((f"header-{n}" for n in range(30)), "the same for all of them")
    one, many = (
        len(
            ForkingPickler.dumps(
                BatchPayload(delivery(f"{n:036}", **request) for n in range(count))
            )
        )
        for count in (1, 64)
    )

    assert many < one + 64 * 80
