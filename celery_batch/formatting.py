"""Formats numbers with three digits and a unit, tables, and values in messages."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["aligned", "brief", "figure", "number", "with_article"]

#: In seconds, the largest first.
_UNITS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}


def number(amount: float) -> str:
    """Return a number with three digits, as in 1,230 and 0.123."""
    digits = float(f"{amount:.3g}")
    return f"{digits:,.0f}" if digits >= 100 else f"{digits:g}"  # noqa: PLR2004 (three digits)


def figure(seconds: float) -> str:
    """Return seconds with three digits and a unit, as in 1.5 s, 12.3 ms and 8.26 µs."""
    digits = float(f"{seconds:.3g}")
    unit = next((unit for unit, size in _UNITS.items() if digits >= size), "µs" if digits else "s")
    return f"{number(digits / _UNITS[unit])} {unit}"


def aligned(rows: Iterable[Sequence[str]]) -> str:
    """Return rows of cells as lines with aligned columns."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def brief(value: Any) -> str:
    """Return a value in a few words: an array's dtype and shape, the beginning of any other."""
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is None or shape is None:
        return reprlib.repr(value)
    return f"{type(value).__name__}({dtype}, {list(shape)})"


def with_article(name: str) -> str:
    """Return a type's name as in "an int" and "a str"."""
    return f"{'an' if name[:1] in tuple('AEIOaeio') else 'a'} {name}"
