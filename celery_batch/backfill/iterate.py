"""A backfill in Python: an iterator over its results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from celery_batch.backfill.control import JobControl, RemoteControl
from celery_batch.backfill.engine import Backfill, Pace, lowest_priority
from celery_batch.backfill.inputs import Arguments
from celery_batch.backfill.job import check_options
from celery_batch.backfill.progress import Clock
from celery_batch.backfill.window import Answered

__all__ = ["answers"]


def answers(
    task: Any,
    items: Iterable[Any],
    options: dict[str, Any],
    *,
    window: int | None,
    in_order: bool,
) -> Iterator[Answered]:
    """
    Yield an answer for each item; see `ClientMethods.backfill`.

    Args:
        task: The batch task.
        items: Records, or values of the only parameter.
        options: Celery's, for each call.
        window: Most rows on their way.
        in_order: Answers come in the items' order.

    Raises:
        TypeError: There is no such option.
        ValueError: The window has room for no row.
    """
    check_options(task.app, options)
    if window is not None and window < 1:
        raise ValueError(f"backfill(): window must be at least 1 row, got {window!r}")
    held: dict[int, Any] = {}
    rows = Arguments(task._batch_signature).rows(_held(items, held))
    pace = Pace.of(task, window=window, in_order=in_order)
    options = {"priority": lowest_priority(task.app), **options}
    # Only of what surely has them in hand: others may read all there is to count it.
    total = len(items) if isinstance(items, (Sequence, Mapping)) else None
    return _answers(task, Backfill(task, rows, pace, options), held, total)


def _held(items: Iterable[Any], held: dict[int, Any]) -> Iterator[Any]:
    """Yield items, and hold each by its position until it has its answer."""
    for position, item in enumerate(items):
        held[position] = item
        yield item


def _answers(
    task: Any, backfill: Backfill, held: dict[int, Any], total: int | None
) -> Iterator[Answered]:
    job_control, clock = JobControl(), Clock(_Counted(), total)
    with backfill, RemoteControl(task.app, task.name, None, job_control) as remote:
        while not backfill.is_over:
            job_control.check()
            is_paused = job_control.is_paused
            found = backfill.turn(sends=not is_paused)
            clock.ledger.add(found)
            state = "paused" if is_paused else "running"
            remote.tell(clock.progress(**backfill.facts(), state=state))
            for answer in found:
                yield answer._replace(item=held.pop(answer.row.position))


class _Counted:
    """Counts answers, and keeps none."""

    def __init__(self) -> None:
        self.done = range(0)
        self.failed = 0

    def add(self, answers: Iterable[Answered]) -> None:
        """Count some more."""
        errors = [bool(answer.error) for answer in answers]
        self.done = range(len(self.done) + len(errors))
        self.failed += sum(errors)
