"""A backfill: many rows through a task, with a bounded number on their way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self

from celery_batch.backfill.sender import Sender
from celery_batch.backfill.window import WINDOW_BYTES, Answered, Parcel, Row, Window
from celery_batch.config import max_queue_of, policy_of

__all__ = ["TIMEOUT", "Backfill", "Pace", "lowest_priority"]

#: Seconds to read, and then to wait for an answer, before looking around.
_LOOK = 0.5

#: Seconds to wait for an answer where the input could not be read as fast as it might leave.
_GLANCE = 0.05

#: The part of the window with which workers have enough to do while more is gathered.
_PLENTY = 7 / 8

#: Batches on their way: those in workers and those that wait for them.
_BATCHES = 32

#: Batches on their way for each worker, where there are so many that those are too few.
_FOR_EACH = 4

#: Seconds without any answer after which parcels that nobody has are sent again.
TIMEOUT = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """
    How much of a backfill travels at once.

    Args:
        window: Most rows on their way.
        parcel: Most rows in one message; never more than fit into one model call, so
            that nobody else waits longer for one than for a batch.
        in_order: Answers come in the input's order; else as they are known.
        window_bytes: Bytes of rows on their way from which on nothing more leaves.
        patience: Seconds without any answer after which what nobody has is sent again.
        for_each: Rows on their way for each worker that answers, where that is more than
            ``window``.
    """

    window: int
    parcel: int
    in_order: bool = True
    window_bytes: int = WINDOW_BYTES
    patience: float = TIMEOUT
    for_each: int = 0

    @classmethod
    def of(cls, task: Any, *, window: int | None = None, **more: Any) -> Pace:
        """
        Return the pace that keeps a task's workers busy.

        Args:
            task: The batch task.
            window: Most rows on their way, where that is to be something else; never more
                than may wait by the option ``max_queue``.
            more: The other numbers, where they are to be something else.
        """
        size = policy_of(task).max_batch_size
        most = max_queue_of(task.app, task)
        for_each = _FOR_EACH * size if window is None and most is None else 0
        window = window or _BATCHES * size
        window = window if most is None else min(window, most)
        return cls(window=window, parcel=min(size, window), for_each=for_each, **more)


def lowest_priority(app: Any) -> int:
    """
    Return the priority behind all others: 0, but 9 on Redis, where it counts downwards.

    Args:
        app: The Celery app.
    """
    with app.connection_for_write() as connection:
        return 9 if connection.transport.driver_type == "redis" else 0


class Backfill:
    """
    Rows that are answered by the workers of a batch task.

    Iterated over it yields an `Answered` for each row, and reads the rows no further
    than it has to.

    Args:
        task: The batch task.
        rows: The input.
        pace: How much of it travels at once.
        options: Celery's options for each call, such as ``queue`` and ``priority``.
    """

    def __init__(
        self, task: Any, rows: Iterable[Row], pace: Pace, options: dict[str, Any] | None = None
    ) -> None:
        self._pace = pace
        self._window = Window(
            rows,
            window=pace.window,
            parcel=pace.parcel,
            in_order=pace.in_order,
            window_bytes=pace.window_bytes,
        )
        self._sender = Sender(task, options or {})
        self._received = self._answered = time.monotonic()
        self._patience = pace.patience

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.recall()

    def __iter__(self) -> Iterator[Answered]:
        with self:
            while not self.is_over:
                yield from self.turn()

    @property
    def is_over(self) -> bool:
        """Whether every row has come to its end."""
        return self._window.is_over

    def facts(self) -> dict[str, Any]:
        """Return what there is to tell of the moment; see `Progress`."""
        return {
            "flying": self._window.away,
            "window": self._window.window,
            "workers": self._sender.workers(),
            "silent": time.monotonic() - self._answered,
        }

    def recall(self) -> None:
        """Give up what is on its way; what has not begun will not."""
        self._sender.recall()

    def turn(self, timeout: float = _LOOK, *, sends: bool = True) -> list[Answered]:
        """
        Send what may leave, and return what has come.

        Args:
            timeout: Most seconds to wait for something to come.
            sends: Whether anything may leave.
        """
        workers = self._sender.workers()
        self._window.window = max(self._pace.window, workers * self._pace.for_each)
        if sends and self._send():
            timeout = min(timeout, _GLANCE)
        if not self._sender.has_begun:
            self._answered = time.monotonic()  # nobody was asked yet
        due = self._window.due()  # rows that need no worker are not to wait for one
        for parcel, answers in self._sender.arrivals(0.0 if due else timeout, self._has_plenty):
            self._received = self._answered = time.monotonic()
            if answers is None:
                self._window.fell_apart(parcel)
            else:
                self._window.arrived(answers)
        self._look_for_lost()
        return due + self._window.due()

    def _send(self) -> bool:
        """
        Send what may leave, each as soon as it is read: workers need not wait for the rest.

        Returns:
            Whether time was over before all that might leave was read.
        """
        until = time.monotonic() + _LOOK
        for parcels in self._together(lambda: time.monotonic() > until):
            refused = self._sender.send(parcels)
            for parcel in refused:
                self._window.lost(parcel)
            if refused:
                return False
        return self._window.could_read

    def _together(self, is_late: Callable[[], bool]) -> Iterator[list[Parcel]]:
        """
        Yield parcels in the order of departure, and together what may leave together.

        Those of one row leave with what comes behind them, and others while there is plenty.

        Args:
            is_late: Says whether to leave the rest of the input for another time.
        """
        together: list[Parcel] = []
        rows = 0
        for parcel in self._window.departures(is_late):
            together.append(parcel)
            rows += len(parcel)
            if not (parcel.is_single or self._has_plenty(besides=rows)):
                yield together
                together, rows = [], 0
        if together:
            yield together

    def _has_plenty(self, *, besides: int = 0) -> bool:
        """
        Return whether so much is on its way that nobody waits for what is still to leave.

        Args:
            besides: Rows that have not left, though they count.
        """
        return _PLENTY * self._window.window <= self._window.away - besides

    def _look_for_lost(self) -> None:
        """Have sent again what no broker and no worker has any more: nobody waits for ever."""
        if time.monotonic() - self._received < self._patience:
            return
        lost = self._sender.lost()
        for parcel in lost:
            self._window.lost(parcel)
        if lost:
            self._patience *= 2  # a worker may be too busy to be asked, and slower than this
        self._received = time.monotonic()
