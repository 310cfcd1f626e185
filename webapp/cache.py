"""What was answered a moment ago, to answer the same again: bounded by number and by age."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

__all__ = ["MISSING", "Cache"]

#: Stands for no value, since None is one.
MISSING: Any = object()


class Cache:
    """
    Values by key; of too many, those that were not asked for the longest go.

    Pure: it is told the time, and takes no lock.

    Args:
        most: How many are kept.
        seconds: For how long each is.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._values: OrderedDict[bytes, tuple[float, Any]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: bytes, now: float) -> Any:
        """
        Return a value, or `MISSING`.

        Args:
            key: Its key.
            now: Seconds, of a clock that never goes back.
        """
        until, value = self._values.get(key, (0.0, MISSING))
        if value is MISSING:
            return MISSING
        if now >= until:
            del self._values[key]
            return MISSING
        self._values.move_to_end(key)
        return value

    def put(self, key: bytes, value: Any, now: float) -> None:
        """
        Keep a value.

        Args:
            key: Its key.
            value: Anything.
            now: Seconds, of the same clock.
        """
        self._values[key] = now + self._seconds, value
        self._values.move_to_end(key)
        if len(self._values) > self._most:
            self._values.popitem(last=False)
