"""The requests of a batch as they are sent to the pool process.

Requests of one task have the same thirty fields, and most of them the same values.
Pickled one by one, each would carry the names and all the values again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from kombu.serialization import loads

from celery_batch.batching.cost import CostLimits
from celery_batch.payloads.values import put_back
from celery_batch.worker.intake.message_format import check_payload

__all__ = [
    "BatchPayload",
    "Delivery",
]


class Delivery(NamedTuple):
    """One request on its way to the pool process, its body still encoded."""

    task_id: str
    request: dict[str, Any]  # Celery's request dict without arguments
    body: Any  # the message's body; already decoded if `content_type` is None
    content_type: str | None  # of the body
    content_encoding: str | None  # of the body
    #: When it came to this worker, on the monotonic clock; None if unknown.
    arrived: float | None = None
    is_checked: bool = True  # whether the body has been decoded before, and is well-formed
    #: In the pool process, the bytes of the values that are stored beside it.
    stored: list[memoryview] | None = None

    def decode(self, accept: Any) -> tuple[Any, Any, dict[str, Any]]:
        """Return arguments, keyword arguments and what Celery embeds beside them."""
        payload = self.body
        if self.content_type is not None:
            payload = loads(payload, self.content_type, self.content_encoding, accept=accept)
        return self.checked(payload)

    def checked(self, payload: Any) -> tuple[Any, Any, dict[str, Any]]:
        """Return the parts of a decoded body, with the values that are stored beside it."""
        if not self.is_checked:
            check_payload(payload)
        args, kwargs, embed = payload
        if self.stored is not None:
            args, kwargs = put_back(args, self.stored), put_back(kwargs, self.stored)
        return args, kwargs, embed or {}


#: Types whose values can be shared: immutable, and never equal to a value of another type.
_PLAIN = (str, bytes, type(None))


class BatchPayload(list[Delivery]):
    """The deliveries of one job, oldest first, and in its attributes what is known of it."""

    #: Most rows in one call of the model; None for the task's own option.
    most: int | None = None
    #: The largest call, where cost is limited.
    cost_limits: CostLimits | None = None
    #: Of two batches that are ready, the one with the smaller goes first.
    precedence: tuple[int, float] = (0, 0.0)
    reason = ""  # why they left as a batch
    #: How they were chosen, where there is a latency target; see `batching.batch.Plan`.
    plan: Sequence[Any] | None = None
    has_watchers = True  # whether events with their results are sent
    is_lone = False  # whether no other batch runs or is formed: worker threads would be idle
    #: Whether equal requests share a row, and for how many seconds answers are kept; None for the
    #: task's own options.
    reuse: tuple[bool, float | None] | None = None

    #: The ids of those that were revoked since they were read, where that was before the start.
    revoked: Collection[str] = ()

    def __init__(self, deliveries: Iterable[Delivery] = (), **about: Any) -> None:
        super().__init__(deliveries)
        vars(self).update(about)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle them as columns, which pool processes turn back into a list."""
        columns = [_pack(column) for column in zip(*self, strict=True)]
        return _unload, (len(self), columns, vars(self))


def _unload(count: int, columns: Iterable[Any], about: dict[str, Any]) -> BatchPayload:
    rows = zip(*(_unpack(each, count) for each in columns), strict=True)
    return BatchPayload(map(Delivery._make, rows), **about)


def _pack(values: Sequence[Any]) -> tuple[str, Any]:
    """Return a column as how it is packed, and what is in it."""
    first = values[0] if values else None
    if isinstance(first, _PLAIN):
        is_same = values.count(first) == len(values) and type(first) in _PLAIN
        return ("same", first) if is_same else ("each", values)
    if type(first) is not dict or not _are_alike(values):
        return "each", values
    columns = zip(*[value.values() for value in values], strict=True)
    return "table", (tuple(first), [_pack(column) for column in columns])


def _are_alike(values: Sequence[Any]) -> bool:
    """Return whether all are dicts with the same keys in the same order."""
    names = list(values[0])
    return all(type(value) is dict and list(value) == names for value in values)


def _unpack(column: tuple[str, Any], count: int) -> Iterable[Any]:
    how, what = column
    if how == "same":
        return repeat(what, count)
    if how == "each":
        return list(what)
    names, columns = what
    if not names:
        return [{} for _ in range(count)]
    rows = zip(*(_unpack(each, count) for each in columns), strict=True)
    return [dict(zip(names, row, strict=True)) for row in rows]
