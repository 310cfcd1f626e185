"""
The shapes that calls of a model may have: numbers of rows, and lengths of rows.

Rule 1: a call has one of the given sizes, and its rows one of the given lengths. What is smaller
        is padded up to the next.
Rule 2: a shape occurs if a call within the limits can have it. A row that exceeds them by itself
        runs in a call of the smallest size.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

__all__ = ["are_ascending", "most_rows", "round_down", "round_up"]

Number = TypeVar("Number", int, float)


def round_up(steps: Sequence[int], value: Number) -> Number | int:
    """Return the first step that is no lower; above the last, or without steps, the value."""
    at = bisect_left(steps, value)
    return steps[at] if at < len(steps) else value


def round_down(steps: Sequence[int], value: int) -> int:
    """Return the last step that is no higher, or 0; without steps the value."""
    if not steps:
        return value
    at = bisect_right(steps, value)
    return steps[at - 1] if at else 0


def most_rows(sizes: Sequence[int], limit: int) -> int:
    """Return the rows of the largest call within a limit of rows, or of the smallest call."""
    return round_down(sizes, limit) or sizes[0]


def are_ascending(steps: object) -> bool:
    """Return whether these are whole numbers from 1 up, each higher than the one before."""
    if not isinstance(steps, tuple) or not all(type(each) is int and each > 0 for each in steps):
        return False
    return all(low < high for low, high in pairwise(steps))
