"""

What to do about the items of a failed batch.

Rule 1: one bad item fails alone.  A batch that fails is cut in halves until the
        culprits stand alone; everybody else is answered.
Rule 2: the cost is bounded: k culprits among n items take at most
        1 + 2 k log2 n calls of the model, one among 32 at most 11.
Rule 3: what does not fit into memory is cut in halves too, but nobody is guilty
        until it stands alone.
Rule 4: this file calls no model and knows no error; facts come in, the next
        part to try goes out.
"""

from __future__ import annotations

from enum import Enum, auto

__all__ = ["Recovery", "SafeSize", "Verdict", "after_loss"]


class Recovery:
    """
    The way of one batch through the model, until every item has its outcome.

    Ask `next` for the part to run, and say with `failed` if it went wrong.  Parts
    come in the order of the items.

    Args:
        size: How many items the batch has.
    """

    def __init__(self, size: int) -> None:
        self._todo = [range(size)] if size else []
        #: Whether anything of it went wrong, and was cut in halves.
        self.was_cut = False

    def next(self, largest: int) -> range | None:
        """
        Return the indices of the items to run next; None when all have been run.

        Args:
            largest: Most items that may be run at once, as far as is known by now.
        """
        if not self._todo:
            return None
        part = self._todo.pop()
        if len(part) > largest:
            self._todo.append(part[largest:])
        return part[:largest]

    def failed(self, part: range) -> bool:
        """
        Cut a part that went wrong in halves, to be run next.

        Args:
            part: As `next` gave it.

        Returns:
            Whether there were halves to cut; else its only item stands convicted.
        """
        if len(part) <= 1:
            return False
        self.was_cut = True
        middle = part.start + len(part) // 2
        self._todo += [range(middle, part.stop), range(part.start, middle)]
        return True

    def abandon(self) -> list[int]:
        """Give up on everything that is still to run, and return its indices."""
        left = sorted(index for part in self._todo for index in part)
        self._todo.clear()
        return left


class SafeSize:
    """
    The largest batch that fits into memory, learnt by running out of it.

    Once something did not fit, later batches stay within what did; and every so
    often, when batches of that size went well, a slightly larger one is risked.
    Each time that goes wrong, the next try comes later.
    """

    #: Batches of the largest size between two tries of a larger one: at first, at most.
    FIRST_PATIENCE, LONGEST_PATIENCE = 32, 4096

    def __init__(self) -> None:
        self.largest: int | None = None
        self._fits = 0
        self._went_well = 0
        self._patience = self.FIRST_PATIENCE // 2

    def __repr__(self) -> str:
        return f"<SafeSize {self.largest or 'unknown'}>"

    def fitted(self, size: int) -> None:
        """Take note that this many items went through."""
        if self.largest is None:
            return
        self._fits = max(self._fits, size)
        if size < self.largest:
            return
        self._went_well += 1
        if self._went_well >= self._patience:
            self._went_well = 0
            self.largest += max(self.largest // 8, 1)

    def did_not_fit(self, size: int) -> None:
        """Take note that this many items, 2 or more, were too many."""
        if self._fits >= size:
            self._fits = 0  # memory has shrunk, or these items are larger
        self.largest = self._fits or max(size // 2, 1)
        self._went_well = 0
        self._patience = min(self._patience * 2, self.LONGEST_PATIENCE)


class Verdict(Enum):
    """What becomes of an item whose process died under it."""

    ALONE = auto()  # it may be the reason, or not: run it alone
    POISON = auto()  # it has done it often enough


def after_loss(losses: int, *, was_alone: bool, max_losses: int) -> Verdict:
    """
    Judge an item that was running when its process died.

    Args:
        losses: How often that has happened to it, this time included.
        was_alone: Whether nobody else was running with it this time; in company
            it may be innocent, however often it happened.
        max_losses: How often is often enough, at least 1.
    """
    return Verdict.POISON if was_alone and losses >= max_losses else Verdict.ALONE
