"""
What to do with a batch that failed.

Rule 1: a failed batch is cut in halves until the culprits stand alone, so that
        the innocent are answered.
Rule 2: what ran out of memory is cut in halves too, and the size that fits is
        remembered; it is doubted again, slowly, for memory may come back.
Rule 3: a batch of one has nobody to be cut from; its error is its own.

One culprit among 32 costs 11 model calls, among n at most ``1 + 2 log2 n``;
k culprits at most ``1 + 2 k log2 n``.
"""

from __future__ import annotations

__all__ = ["Ceiling", "halves"]

#: Batches at the ceiling that have to fit before a larger one is tried.
_PATIENCE = 100

#: By what part the ceiling rises when it is doubted: a quarter.
_STEP = 4


def halves(start: int, stop: int) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """
    Cut a failed run of items in two.

    Args:
        start: Of the first item.
        stop: Behind the last.

    Returns:
        The two halves, the first no shorter; None if there is nothing to cut.
    """
    if stop - start < 2:  # noqa: PLR2004 (one item cannot be cut)
        return None
    middle = (start + stop + 1) // 2
    return (start, middle), (middle, stop)


class Ceiling:
    """
    The batch size that fits into a device's memory, as far as it is known.

    Args:
        patience: Batches at the ceiling that have to fit before it rises.
    """

    def __init__(self, patience: int = _PATIENCE) -> None:
        self.limit: int | None = None
        self._patience = patience
        self._fitted = 0

    def __repr__(self) -> str:
        return f"<Ceiling {self.limit or 'unknown'}>"

    def allows(self, size: int) -> int:
        """Return how many of so many items may go at once."""
        return size if self.limit is None else min(size, self.limit)

    def ran_out(self, size: int) -> None:
        """Learn that a batch of this size does not fit."""
        half = max(size // 2, 1)
        self.limit = half if self.limit is None else min(half, self.limit)
        self._fitted = 0

    def fitted(self, size: int) -> None:
        """Learn that a batch of this size fits."""
        if self.limit is None or size < self.limit:
            return
        self._fitted += 1
        if self._fitted >= self._patience:
            self._fitted = 0
            self.limit += max(self.limit // _STEP, 1)
