"""What Celery's result backends do in place of what they were written to do, in any process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from celery.backends.base import Backend

__all__ = ["as_stored", "client_of", "key_prefix", "read_meta_with"]


class _Reading(threading.local):
    """Whether meta data that are read on this thread are passed on to the function."""

    is_passed_on = True


_reading = _Reading()


@contextmanager
def as_stored() -> Iterator[None]:
    """Read meta data on this thread as they are stored: only the state is of interest."""
    _reading.is_passed_on = False
    try:
        yield
    finally:
        _reading.is_passed_on = True


def key_prefix(backend: Any) -> str:
    """Return what all keys and channels of a Redis backend begin with."""
    return str(backend._transport_options.get("global_keyprefix", ""))  # noqa: SLF001


def client_of(backend: Any, params: dict[str, Any]) -> Any:
    """Return a new client of a Redis backend's server, or of its sentinels' master."""
    return backend._create_client(**params)  # noqa: SLF001


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
        is_wanted = _reading.is_passed_on and isinstance(found, dict) and field in found
        return restore(self, found) if is_wanted else found

    meta_from_decoded.is_ours = True  # type: ignore[attr-defined]
    Backend.meta_from_decoded = meta_from_decoded
