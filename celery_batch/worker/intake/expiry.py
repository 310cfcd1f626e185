"""When requests expire, as their messages' headers say."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from celery.utils.time import maybe_iso8601, maybe_make_aware

__all__ = ["Expiries", "time_of"]

#: What Celery's clients write by default, with their clock in UTC.
_USUAL = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}\+00:00")


def time_of(value: Any) -> Any:
    """Return the time in a header, as Celery's `maybe_iso8601` does."""
    if type(value) is str and _USUAL.fullmatch(value):
        with suppress(ValueError):  # else Celery's own function raises its error
            return datetime.fromisoformat(value)
    return maybe_iso8601(value)


class Expiries:
    """When the requests of one batch expire."""

    def __init__(self, app: Any, headers: Iterable[Any]) -> None:
        said = {place: value for place, value in enumerate(headers) if value}
        zone = app.conf.timezone if said else None
        self._times = {n: maybe_make_aware(time_of(value), zone) for n, value in said.items()}
        self._first = min(self._times.values(), default=None)

    def passed(self) -> Collection[int]:
        """Return the indexes of the expired requests."""
        now = datetime.now(UTC)
        if self._first is None or now <= self._first:
            return ()
        return {place for place, time in self._times.items() if now > time}
