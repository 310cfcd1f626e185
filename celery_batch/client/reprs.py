"""The short description of a call's arguments, as Celery puts it into a message."""

from __future__ import annotations

from typing import Any

from celery.utils.saferepr import saferepr

__all__ = ["described"]

#: Characters from which on a text may have to be cut.
_LONG = 1000

#: Described by their text alone.
_NUMBERS = frozenset((int, float, bool, type(None)))


def described(value: Any, limit: int | None, levels: int) -> str:
    """
    Return what Celery's `saferepr` returns, sooner where the value is plain.

    Args:
        value: A tuple or list of positional, or a dict of keyword arguments.
        limit: Most characters before it is cut, None for any.
        levels: How deep it looks.
    """
    if type(value) is tuple:
        parts = [_plain(each) for each in value]
        if None not in parts:
            inside = ", ".join(parts)  # type: ignore[arg-type]
            if limit is None or len(inside) < limit - 8:
                return f"({inside},)" if len(parts) == 1 else f"({inside})"
    elif value == {} and type(value) is dict:
        return "{}"
    return saferepr(value, limit, levels)  # type: ignore[no-any-return]


def _plain(value: Any) -> str | None:
    kind = type(value)
    if kind is str:
        return "'" + value.replace("'", "\\'") + "'" if len(value) < _LONG else None
    return str(value) if kind in _NUMBERS else None
