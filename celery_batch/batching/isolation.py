"""
What to do with the items of a failed batch.

Rule 1: one bad item fails alone. A batch that fails is split in halves until the
        failing items run alone; all others get their outputs.
Rule 2: the cost is bounded: k failing items among n take at most
        1 + 2 k log2 n model calls, one among 32 at most 11.
Rule 3: a batch that does not fit into memory is split too, but no item fails for that
        unless it runs alone.
Rule 4: this file calls no model and knows no error: facts are arguments, the next
        part to run is the return value.
"""

from __future__ import annotations

__all__ = ["Bisection", "SafeSize"]


class Bisection:
    """The parts in which one batch runs, in the order of its items, until each has an outcome."""

    def __init__(self, size: int) -> None:
        self._todo = [range(size)] if size else []
        #: Whether a part failed and was split in halves.
        self.was_split = False

    @property
    def start(self) -> int:
        """The index of the item that runs next; 0 when all have run."""
        return self._todo[-1].start if self._todo else 0

    def next(self, largest: int) -> range | None:
        """Return the indices of the items to run next, `largest` at most; None if all have run."""
        if not self._todo:
            return None
        part = self._todo.pop()
        if len(part) > largest:
            self._todo.append(part[largest:])
        return part[:largest]

    def split(self, part: range) -> bool:
        """Split a failed part of `next` in halves, to run next; False if it is one item."""
        if len(part) <= 1:
            return False
        self.was_split = True
        middle = part.start + len(part) // 2
        self._todo += [range(middle, part.stop), range(part.start, middle)]
        return True

    def abandon(self) -> list[int]:
        """Drop the parts that have not run, and return their indices."""
        left = sorted(index for part in self._todo for index in part)
        self._todo.clear()
        return left


class SafeSize:
    """The largest batch that fits into memory, found by running out of it."""

    #: Batches of the largest size before a slightly larger one is tried: at first, and at most;
    #: the number doubles each time that one does not fit.
    FIRST_INTERVAL, LONGEST_INTERVAL = 32, 4096

    def __init__(self) -> None:
        self.largest: float | None = None
        self._fits: float = 0
        self._successes = 0
        self._interval = self.FIRST_INTERVAL // 2

    def fitted(self, size: float, *, was_limited: bool = False) -> None:
        """Note that a batch of this size fitted; if `was_limited`, none could have been larger."""
        if self.largest is None:
            return
        self._fits = max(self._fits, size)
        if size < self.largest and not was_limited:
            return
        self._successes += 1
        if self._successes >= self._interval:
            self._successes = 0
            self.largest += self._part(self.largest, 8)

    def did_not_fit(self, size: float) -> None:
        """Note that a batch of this many items, 2 or more, or of this cost, did not fit."""
        if self._fits >= size:
            self._fits = 0  # memory has shrunk, or these items are larger
        self.largest = self._fits or self._part(size, 2)
        self._successes = 0
        self._interval = min(self._interval * 2, self.LONGEST_INTERVAL)

    @staticmethod
    def _part(size: float, number: int) -> float:
        """Return a part of a cost, or of a number of items, which is 1 at least."""
        return size / number if isinstance(size, float) else max(size // number, 1)
