"""
What clerks have read, on its way to the main thread.

Rule 1: everything goes in the order in which it was read, except that a batch overtakes
        the less urgent ones that lie before it, as their models have not begun.
Rule 2: one side puts, and the other takes; what both touch is the standard library's
        queue, which bears an exception out of a signal's handler.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

__all__ = ["HandOver"]

T = TypeVar("T")


class HandOver(Generic[T]):
    """
    A queue in which the urgent overtake.

    What has an ``urgency`` may be overtaken by what has a smaller one; nothing else is,
    and nothing overtakes it.
    """

    def __init__(self) -> None:
        self._read: SimpleQueue[T | None] = SimpleQueue()
        #: The taking side's own.
        self._waiting: deque[T | None] = deque()

    def put(self, what: T | None) -> None:
        """Put something behind everything that is no less urgent."""
        self._read.put(what)

    def get_nowait(self) -> T | None:
        """
        Return what is next.

        Raises:
            Empty: There is nothing.
        """
        self._look()
        if not self._waiting:
            raise Empty
        return self._take()

    def get(self) -> T | None:
        """Return what is next; wait for it if there is nothing."""
        self._look()
        if not self._waiting:
            self._waiting.append(self._read.get())
        return self._take()

    def qsize(self) -> int:
        """Return how many wait."""
        return self._read.qsize() + len(self._waiting)

    def _look(self) -> None:
        while not self._read.empty():
            self._waiting.append(self._read.get())

    def _take(self) -> T | None:
        urgencies = list(self._urgencies())
        place = urgencies.index(min(urgencies)) if urgencies else 0
        what = self._waiting[place]
        del self._waiting[place]
        return what

    def _urgencies(self) -> Iterator[int]:
        """Yield those of the batches that nothing else lies before."""
        for what in self._waiting:
            urgency = getattr(what, "urgency", None)
            if urgency is None:
                return
            yield urgency
