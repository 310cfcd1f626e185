"""Calls those who wait for a reply, in the thread that has heard of it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

__all__ = ["call_each", "is_delivering"]

logger = logging.getLogger(__name__)

_local = threading.local()


def call_each(waiting: Iterable[Callable[[], object]]) -> None:
    """
    Call functions one after the other; what one raises is logged, and the others are called.

    Args:
        waiting: The functions.
    """
    before = is_delivering()
    _local.is_delivering = True
    try:
        for each in waiting:
            try:
                each()
            except Exception:
                logger.exception("A callback of a result has failed")
    finally:
        _local.is_delivering = before


def is_delivering() -> bool:
    """Return whether this thread is the one that others wait for."""
    return getattr(_local, "is_delivering", False)
