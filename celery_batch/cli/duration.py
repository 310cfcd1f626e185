"""Seconds, for people."""

from __future__ import annotations

__all__ = ["duration"]

#: Seconds, of less than which parts are told.
_SHORT = 1

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def duration(seconds: float) -> str:
    """
    Return a time in its two largest units, or part of a second.

    Args:
        seconds: How long.
    """
    whole = round(seconds)
    if 0 < seconds < _SHORT:
        return f"{seconds:.2g} s"
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR} h"
