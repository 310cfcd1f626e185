"""A backfill: many rows through a task, with a bounded number of pending rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Self

from celery_batch.backfill.sender import Sender
from celery_batch.backfill.window import Answer, Chunk, Limits, Row, Window
from celery_batch.config import max_queue_of, policy_of
from celery_batch.errors import InvalidKey

__all__ = ["Backfill", "limits_of", "lowest_priority"]

#: Seconds of one step: to read and send, and then to wait for an answer.
_STEP = 0.5

#: Seconds to wait for an answer where the input is read more slowly than it could be sent.
_SHORT_STEP = 0.05

#: The part of the window with which workers have enough to do while more is gathered.
_ENOUGH = 7 / 8

#: Batches of pending rows: those in workers and those that wait for them.
_BATCHES = 32

#: Batches of pending rows for each worker, where there are so many workers that 32 are too few.
_BATCHES_PER_WORKER = 4


def limits_of(task: Any, *, window: int | None = None, **others: Any) -> Limits:
    """Return limits that keep a task's workers busy."""
    size = policy_of(task).max_batch_size
    most = max_queue_of(task.app, task)
    per_worker = _BATCHES_PER_WORKER * size if window is None and most is None else 0
    window = window or _BATCHES * size
    window = window if most is None else min(window, most)
    return Limits(window=window, chunk_size=min(size, window), rows_per_worker=per_worker, **others)


def _key_function(task: Any) -> Callable[[Row], Hashable] | None:
    """Return what gives the key of a row; None where rows of different keys share a batch."""
    item_key = task._item_key
    if item_key is None:
        return None

    def key_of(row: Row) -> Hashable:
        try:
            key: Hashable = item_key.of_call(row.values, {})
        except InvalidKey:
            key = object()  # equal to no other: it is sent, and fails, by itself
        return key

    return key_of


def lowest_priority(app: Any) -> int:
    """Return the priority behind all others: 0, but 9 on Redis, where it counts downwards."""
    with app.connection_for_write() as connection:
        return 9 if connection.transport.driver_type == "redis" else 0


class Backfill:
    """Rows that are answered by the workers of a batch task."""

    def __init__(
        self, task: Any, rows: Iterable[Row], limits: Limits, options: dict[str, Any] | None = None
    ) -> None:
        self._limits = limits
        self._window = Window(rows, limits, _key_function(task))
        self._sender = Sender(task, options or {})
        self._searched = self._answered = time.monotonic()
        self._patience = limits.patience

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._sender.revoke()

    @property
    def is_over(self) -> bool:
        """Whether the answers of all rows have been returned."""
        return self._window.is_over

    def status(self) -> dict[str, Any]:
        """Return the fields of `Progress` that this object knows."""
        return {
            "pending": self._window.sent,
            "window": self._window.size,
            "workers": self._sender.workers(),
            "since_answer": time.monotonic() - self._answered,
        }

    def step(self, timeout: float = _STEP, *, sends: bool = True) -> list[Answer]:
        """Send what may be sent, and return the answers that have come."""
        per_worker = self._limits.rows_per_worker
        self._window.size = max(self._limits.window, self._sender.workers() * per_worker)
        if sends and self._send():
            timeout = min(timeout, _SHORT_STEP)
        if not self._sender.has_sent:
            self._answered = time.monotonic()  # there is nothing to answer yet
        taken = self._window.take_answers()  # rows that need no worker do not wait for one
        for chunk, answers in self._sender.completed(0.0 if taken else timeout, self._has_enough):
            self._searched = self._answered = time.monotonic()
            if answers is None:
                self._window.split(chunk)
            else:
                self._window.add(answers)
        self._resend_lost()
        return taken + self._window.take_answers()

    def _send(self) -> bool:
        """Send each chunk as soon as it is read; return whether the input was too slow for that."""
        until = time.monotonic() + _STEP
        for chunks in self._groups(lambda: time.monotonic() > until):
            if refused := self._sender.send(chunks):
                self._window.resend(refused)
                return False
        return self._window.can_read

    def _groups(self, is_late: Callable[[], bool]) -> Iterator[list[Chunk]]:
        """Yield chunks in order, those together that may be written together."""
        group: list[Chunk] = []
        for chunk in self._window.next_chunks(is_late):
            group.append(chunk)
            # Single rows join the chunks behind them, as do others while workers have enough.
            if not (chunk.is_single or self._has_enough(unsent=sum(map(len, group)))):
                yield group
                group = []
        if group:
            yield group

    def _has_enough(self, *, unsent: int = 0) -> bool:
        """Return whether workers have enough rows, without those that have not been sent."""
        return _ENOUGH * self._window.size <= self._window.sent - unsent

    def _resend_lost(self) -> None:
        """Send chunks again that neither the broker nor a worker has any more."""
        if time.monotonic() - self._searched < self._patience:
            return
        if lost := self._sender.take_lost():
            have_failed = self._window.resend_lost(lost)
            # A worker may be too busy to be asked, and slower than this.
            self._patience = self._limits.patience if have_failed else 2 * self._patience
        self._searched = time.monotonic()
