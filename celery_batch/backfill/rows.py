"""What a backfill asks, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["Answered", "Row", "Unreadable"]


class Row(NamedTuple):
    """
    One row of the input.

    Args:
        position: Counted from 0, in the input's order.
        key: What the input calls it; its line number if it has no name.
        values: One for each parameter of the batch function.
        flaw: Why it cannot be asked at all, as ``"Type: message"``; "" if it can.
        line: Where it begins in a file that has lines, counted from 1; else 0.
        is_whole: A record with fields of other names is the first value, as a whole.
    """

    position: int
    key: str
    values: tuple[Any, ...]
    flaw: str = ""
    line: int = 0
    is_whole: bool = False

    @property
    def place(self) -> str:
        """Where it is, in words."""
        return f"line {self.line}" if self.line else f"row {self.position + 1}"


class Answered(NamedTuple):
    """
    A row that has come to its end.

    Args:
        row: Which.
        output: The model's; None if it failed.
        error: Why it failed, as ``"Type: message"``; "" if it did not.
        item: What a backfill in Python was given; None of a row that was read from a file.
    """

    row: Row
    output: Any = None
    error: str = ""
    item: Any = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """
    What stands in the place of a record that could not be read.

    Args:
        why: Where it is and what is wrong.
        key: What the input calls it, if that is known.
    """

    why: str
    key: str = ""
