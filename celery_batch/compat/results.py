"""What Celery's result backends do in place of what they were written to do, in any process."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from celery.backends.base import Backend

__all__ = ["read_meta_with"]


def read_meta_with(field: str, restore: Callable[[Any, Any], Any]) -> None:
    """
    Have all result backends of this process pass some of what they have read to a function.

    Args:
        field: Which meta data: those with this field.
        restore: Given a backend and decoded meta data, returns what the backend is to return.
    """
    own = Backend.meta_from_decoded
    if getattr(own, "is_ours", False):
        return

    @wraps(own)
    def meta_from_decoded(self: Any, meta: Any) -> Any:
        found = own(self, meta)
        return restore(self, found) if isinstance(found, dict) and field in found else found

    meta_from_decoded.is_ours = True  # type: ignore[attr-defined]
    Backend.meta_from_decoded = meta_from_decoded
