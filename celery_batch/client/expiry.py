"""When a call is to run no more, as Celery writes it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from celery.utils.time import (
    add_seconds_to_datetime,
    isoparse,
    maybe_make_aware,
    subtract_datetimes,
)

from celery_batch.client.template import Fields
from celery_batch.client.terms import Terms

__all__ = ["expiry_of"]

#: Seconds: RabbitMQ counts milliseconds in 32 bits, and closes the channel on who asks for more.
_LONGEST = 2**32 / 1000 - 1


def expiry_of(app: Any, terms: Terms, expires: Any) -> Fields | None:
    """
    Return what a message says of its expiry; None where Celery has something to say of it.

    Args:
        app: The Celery app.
        terms: Its settings.
        expires: Seconds from now, a `datetime`, or one as a text; None for never.
    """
    if expires is None:
        return {}
    if type(expires) in (int, float):
        at, left = None, expires
    elif type(expires) is datetime and expires.tzinfo is UTC and terms.is_utc:
        at, left = expires.isoformat(), (expires - datetime.now(UTC)).total_seconds()
    else:
        try:
            at, left = _time_of(expires), _left(app, expires)
        except Exception:  # noqa: BLE001 (Celery meets it as well, and says so in its own way)
            return None
    if not 0 <= left <= _LONGEST:
        return None
    return {"expires": at or _after(app, terms, left), "expiration": str(int(left * 1000))}


def _time_of(expires: Any) -> Any:
    return expires if type(expires) is str else expires.isoformat()


def _left(app: Any, expires: Any) -> float:
    at = isoparse(expires) if type(expires) is str else expires
    return subtract_datetimes(at, app.now()).total_seconds()  # type: ignore[no-any-return]


def _after(app: Any, terms: Terms, seconds: float) -> str:
    if terms.is_utc:  # what follows comes to the same
        return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()
    at = maybe_make_aware(add_seconds_to_datetime(app.now(), seconds), tz=app.timezone)
    return at.isoformat()  # type: ignore[no-any-return]
