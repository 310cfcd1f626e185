"""A set of whole numbers, most of which follow one another."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

__all__ = ["Spans"]


class Spans:
    """
    Numbers as a few spans, each with its first one and the one after its last.

    Args:
        spans: In any order; they may touch and overlap.
    """

    def __init__(self, spans: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in sorted(spans):
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            elif start < end:
                self._starts.append(start)
                self._ends.append(end)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._starts, self._ends, strict=True))

    def __len__(self) -> int:
        return sum(self._ends) - sum(self._starts)

    def __contains__(self, number: int) -> bool:
        if not self._ends or number >= self._ends[-1]:
            return False  # as of most rows that are asked for: those behind what is done
        at = bisect_right(self._starts, number) - 1
        return at >= 0 and number < self._ends[at]

    def add(self, number: int) -> None:
        """Take one number in, which is not in yet."""
        if self._ends and self._ends[-1] == number:
            self._ends[-1] = number + 1  # as of most rows, which come in order
            return
        at = bisect_right(self._starts, number)
        follows = at > 0 and self._ends[at - 1] == number
        precedes = at < len(self._starts) and self._starts[at] == number + 1
        if follows and precedes:
            self._ends[at - 1] = self._ends.pop(at)
            del self._starts[at]
        elif follows:
            self._ends[at - 1] = number + 1
        elif precedes:
            self._starts[at] = number
        else:
            self._starts.insert(at, number)
            self._ends.insert(at, number + 1)
