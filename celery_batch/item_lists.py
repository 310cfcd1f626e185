"""Checks what is given as a list of items."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from celery_batch.formatting import with_article

__all__ = ["refuse_one_value"]


def refuse_one_value(taker: str, items: Iterable[Any], one: str = "[item]") -> None:
    """Raise TypeError for a text or a mapping, whose letters or keys are hardly meant as items."""
    is_list = hasattr(items, "__iter__") or hasattr(items, "__getitem__")
    if not is_list or isinstance(items, (str, bytes, bytearray, Mapping)):
        raise TypeError(
            f"{taker} takes a list of items, got {with_article(type(items).__name__)}; for one item"
            f" write {one}"
        )
