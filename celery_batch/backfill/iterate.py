"""A backfill in Python: an iterator over its answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from celery_batch.backfill.control import JobControl
from celery_batch.backfill.engine import Backfill, limits_of, lowest_priority
from celery_batch.backfill.inputs import Arguments
from celery_batch.backfill.progress import Clock
from celery_batch.backfill.window import Answer
from celery_batch.call_options import check_options
from celery_batch.item_lists import refuse_one_value
from celery_batch.serialization.arrays import is_array

__all__ = ["answers"]

#: Options that are not the same for all calls of a backfill.
_OF_EACH_CALL = ("name", "args", "kwargs", "task_id", "result_cls", "body")


def answers(
    task: Any,
    items: Iterable[Any],
    options: dict[str, Any],
    *,
    window: int | None,
    in_order: bool,
) -> Iterator[Answer]:
    """Yield an answer for each item; see `ClientMethods.backfill`."""
    refuse_one_value("backfill()", items)
    for name in _OF_EACH_CALL:
        if name in options:
            raise TypeError(f"backfill() takes no option {name!r}: each call has its own")
    check_options("backfill", task.app, options, ("window", "in_order"))
    if window is not None and window < 1:
        raise ValueError(f"backfill(): window must be at least 1 row, got {window!r}")
    rows = Arguments(task._batch_signature, keeps_items=True).rows(items)
    limits = limits_of(task, window=window, in_order=in_order)
    options = {"priority": lowest_priority(task.app), **options}
    # Not of other iterables with a length: some read all of their input to count it.
    has_length = isinstance(items, Sequence) or is_array(items)
    total = len(items) if has_length else None  # type: ignore[arg-type]
    return _answers(task, Backfill(task, rows, limits, options), Clock(total))


def _answers(task: Any, backfill: Backfill, clock: Clock) -> Iterator[Answer]:
    with backfill, JobControl(task.app, task.name) as control:
        for found in control.steps(backfill, clock, lambda each: sum(bool(a.error) for a in each)):
            yield from found
