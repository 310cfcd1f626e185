"""In what a backfill differs from one that was begun before."""

from __future__ import annotations

from typing import Any

__all__ = ["changes"]

#: How each of these is given.
_OPTIONS = {"task": "TASK", "format": "--format", "key": "--key", "field": "--field"}


def changes(before: dict[str, Any], now: dict[str, Any]) -> str:
    """
    Return in words what has changed, "" if nothing has.

    Args:
        before: What a backfill was begun with; what is missing there is not compared.
        now: What it is to go on with.
    """
    names = [name for name in now if name in before and before[name] != now[name]]
    return ", and ".join(_change(name, before[name], now[name]) for name in names)


def _change(name: str, before: Any, now: Any) -> str:
    if name == "input":
        return "the input has changed since"
    option = _OPTIONS.get(name, name)
    return f"{option} was {_said(before)} then, and is {_said(now)} now"


def _said(value: Any) -> str:
    return "not given" if value is None else str(value)
