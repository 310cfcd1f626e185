"""Which of RabbitMQ's deliveries on a channel are settled."""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter

__all__ = ["SettledTags"]

_first = itemgetter(0)


class SettledTags:
    """
    Numbers of deliveries, kept as stretches without a gap.

    A message that waits for its time holds all those up that come after it, for hours
    perhaps; one by one they would be too many to remember.
    """

    def __init__(self) -> None:
        #: First and last of each, in order; the first stretch begins where all began.
        self._stretches = [[0, 0]]

    def __contains__(self, tag: int) -> bool:
        return self._stretches[self._place(tag) - 1][1] >= tag

    def __len__(self) -> int:
        """Return how many stretches there are."""
        return len(self._stretches)

    @property
    def floor(self) -> int:
        """All up to this number are settled."""
        return self._stretches[0][1]

    def begin(self, tag: int) -> None:
        """
        Take note of the first delivery that is ours to settle.

        Args:
            tag: Its number.
        """
        self._stretches[0][1] = tag - 1

    def add(self, tag: int) -> None:
        """
        Take note that a delivery is settled.

        Args:
            tag: Its number.
        """
        stretches, place = self._stretches, self._place(tag)
        before = stretches[place - 1]
        if before[1] >= tag:
            return
        after = stretches[place] if place < len(stretches) else None
        if after is not None and after[0] == tag + 1:
            after[0] = tag
            if before[1] == tag - 1:
                before[1] = after[1]
                del stretches[place]
        elif before[1] == tag - 1:
            before[1] = tag
        else:
            stretches.insert(place, [tag, tag])

    def _place(self, tag: int) -> int:
        return bisect_right(self._stretches, tag, key=_first)
