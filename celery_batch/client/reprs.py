"""The short description of a call's arguments, as Celery puts it into a message."""

from __future__ import annotations

from typing import Any

from celery.utils.saferepr import saferepr

__all__ = ["described"]

#: Characters from which on a text may have to be cut.
_LONG = 1000

#: Characters beside what is inside, and some to spare.
_AROUND = 8

#: Characters of a number in a list, with what parts it from the next.
_SHORTEST = 3

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
    kind = type(value)
    if kind is tuple or kind is list:
        parts = [_part(each, limit, levels) for each in value]
        if None not in parts:
            inside = ", ".join(parts)  # type: ignore[arg-type]
            if limit is None or len(inside) < limit - _AROUND:
                if kind is list:
                    return f"[{inside}]"
                return f"({inside},)" if len(parts) == 1 else f"({inside})"
    elif value == {} and kind is dict:
        return "{}"
    return saferepr(value, limit, levels)  # type: ignore[no-any-return]


def _part(value: Any, limit: int | None, levels: int) -> str | None:
    """Return an argument as `described` would have it, None if only Celery knows; so below."""
    return _listed(value, limit) if type(value) is list and levels != 1 else _plain(value)


def _listed(values: list[Any], limit: int | None) -> str | None:
    """Return a list of plain values, as chunks have for each parameter."""
    if limit is not None and len(values) * _SHORTEST > limit:
        return None  # it will be cut
    if _NUMBERS.issuperset(map(type, values)):
        return repr(values)
    parts, size = [], 0
    for each in values:
        part = _plain(each)
        size += len(part or "")
        if part is None or (limit is not None and size > limit):
            return None
        parts.append(part)
    return f"[{', '.join(parts)}]"


def _plain(value: Any) -> str | None:
    kind = type(value)
    if kind is str:
        return "'" + value.replace("'", "\\'") + "'" if len(value) < _LONG else None
    return str(value) if kind in _NUMBERS else None
