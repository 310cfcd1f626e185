"""Checks what is given as a list of items."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from celery_batch.formatting import with_article

__all__ = ["is_list", "refuse_one_value"]


def is_list(items: Any) -> bool:
    """Return whether it holds items; the letters of a text and a dict's keys are hardly meant."""
    can_iterate = hasattr(items, "__iter__") or hasattr(items, "__getitem__")
    can_iterate = can_iterate and getattr(items, "ndim", None) != 0  # as that of one number
    return can_iterate and not isinstance(items, (str, bytes, bytearray, Mapping))


def refuse_one_value(taker: str, items: Iterable[Any], one: str = "[item]") -> None:
    """Raise TypeError for what is no list of items, such as a text."""
    if not is_list(items):
        raise TypeError(
            f"{taker} takes a list of items, got {with_article(type(items).__name__)}; for one item"
            f" write {one}"
        )
