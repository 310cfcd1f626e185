"""What a backfill asks, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Answered", "Row"]


@dataclass(frozen=True, slots=True)
class Row:
    """
    One row of the input.

    Args:
        position: Counted from 0, in the input's order.
        key: What the input calls it; its line number if it has no name.
        values: One for each parameter of the batch function.
    """

    position: int
    key: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Answered:
    """
    A row that has come to its end.

    Args:
        row: Which.
        output: The model's; None if it failed.
        error: Why it failed, as ``"Type: message"``; "" if it did not.
    """

    row: Row
    output: Any = None
    error: str = ""
