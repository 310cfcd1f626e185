"""Formats numbers with three digits and a unit, tables, and values and hints in messages."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

__all__ = ["aligned", "brief", "did_you_mean", "figure", "number", "with_article"]

#: In seconds, the largest first.
_UNITS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}

#: How alike names have to be for one to be hinted at, of 1: channel is not meant as exchange.
_ALIKE = 0.7

#: What options are called elsewhere; the names that look most like these mean something else.
_USUAL_NAMES = {
    "batch_size": "max_batch_size",
    "batch_max_size": "max_batch_size",  # the setting's name
    "flush_every": "max_batch_size",  # celery-batches' names
    "flush_interval": "max_wait",
    "timeout": "time_limit",
}


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


def did_you_mean(name: str, known: Any) -> str:
    """Return a hint at the nearest known name, or nothing."""
    public = sorted(each for each in known if not each.startswith("_"))
    usual = _USUAL_NAMES.get(name)
    near = [usual] if usual in public else get_close_matches(name, public, n=1, cutoff=_ALIKE)
    return f"; did you mean {near[0]}?" if near else ""
