"""A backfill in Python: an iterator over its answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from inspect import signature
from typing import Any

from kombu.messaging import Producer

from celery_batch.backfill.control import JobControl
from celery_batch.backfill.engine import Backfill, limits_of, lowest_priority
from celery_batch.backfill.inputs import Arguments
from celery_batch.backfill.progress import Clock
from celery_batch.backfill.window import Answer
from celery_batch.config import did_you_mean
from celery_batch.serialization.arrays import is_array

__all__ = ["answers", "check_options"]


def answers(
    task: Any,
    items: Iterable[Any],
    options: dict[str, Any],
    *,
    window: int | None,
    in_order: bool,
) -> Iterator[Answer]:
    """Yield an answer for each item; see `ClientMethods.backfill`."""
    check_options(task.app, options)
    if window is not None and window < 1:
        raise ValueError(f"backfill(): window must be at least 1 row, got {window!r}")
    rows = Arguments(task._batch_signature, keeps_items=True).rows(items)
    limits = limits_of(task, window=window, in_order=in_order)
    options = {"priority": lowest_priority(task.app), **options}
    # Not of other iterables with a length: some read all of their input to count it.
    has_length = isinstance(items, (Sequence, Mapping)) or is_array(items)
    total = len(items) if has_length else None  # type: ignore[arg-type]
    return _answers(task, Backfill(task, rows, limits, options), Clock(total))


def _answers(task: Any, backfill: Backfill, clock: Clock) -> Iterator[Answer]:
    def count_failed(found: list[Answer]) -> int:
        return sum(bool(answer.error) for answer in found)

    with backfill, JobControl(task.app, task.name) as control:
        for found in control.steps(backfill, clock, count_failed):
            yield from found


#: What Celery's router and kombu read beside the parameters of `send_task` and `publish`.
_OF_MESSAGES = (
    *("queue", "exchange_type", "argsrepr", "kwargsrepr", "stamped_headers", "origin"),
    *("ignore_result", "message_id", "correlation_id", "user_id", "app_id", "type", "timestamp"),
)

#: Options that are not the same for all calls of a backfill.
_OF_EACH_CALL = ("name", "args", "kwargs", "task_id", "result_cls", "body")


def check_options(app: Any, options: Iterable[str]) -> None:
    """Raise TypeError for a name that is no option of a call, with the name that was meant."""
    known = {
        *("window", "in_order", *_OF_MESSAGES),
        *signature(app.send_task).parameters,
        *signature(Producer.publish).parameters,
    } - {"self", "options", "properties"}
    for name in options:
        if name in _OF_EACH_CALL:
            raise TypeError(f"backfill() takes no option {name!r}: each call has its own")
        if name not in known:
            hint = did_you_mean(name, known)
            raise TypeError(f"backfill() takes no option {name!r}{hint}")
