"""Checks the values of calls' options, and what they take their arguments from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from inspect import signature
from typing import Any

from celery.utils.time import isoparse
from kombu.compression import get_encoder
from kombu.connection import Connection
from kombu.entity import Queue
from kombu.utils.functional import maybe_list

from celery_batch.errors import ConfigurationError

__all__ = ["check_arguments", "readable_options"]


def check_arguments(task: Any, args: Any, kwargs: Any) -> None:
    """Raise TypeError for what no call's arguments can be, by position and by name."""
    for name, value, kinds, expected in (
        ("args", args, (list, tuple), "a list or tuple"),
        ("kwargs", kwargs, Mapping, "a dict"),
    ):
        if value is not None and not isinstance(value, kinds):
            raise TypeError(f"{task.name}: task {name} must be {expected}, got {value!r:.60}")


def readable_options(task: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a call; raise ConfigurationError for what Celery cannot read."""
    for name in _READABLE.keys() & options.keys():
        value, (read, expected) = options[name], _READABLE[name]
        try:
            found = read(value) if value else value
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            words = f"{task.name}: {name}: must be {expected}, got {value!r}"
            raise ConfigurationError(words) from error
        if name == "headers" and found is not value:
            options = {**options, name: found}
    return options


def _limit(seconds: Any) -> None:
    if isinstance(seconds, bool) or not 0 <= seconds < math.inf:
        raise ValueError


def _later(seconds: Any) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def _expiry(value: Any) -> datetime:
    if isinstance(value, datetime):
        return value
    return isoparse(value) if isinstance(value, str) else _later(value)


def _policy(value: Any) -> None:
    signature(Connection.ensure).bind(None, None, None, **value)


#: What reads an option as Celery does, and what it may be.
_READABLE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "compression": (get_encoder, "a method that kombu knows, such as 'gzip'"),
    "countdown": (_later, "seconds as a number"),
    "eta": (
        lambda value: isoparse(value) if isinstance(value, str) else value.isoformat(),
        "a datetime or its text in ISO 8601",
    ),
    "expires": (_expiry, "seconds as a number, a datetime or its text in ISO 8601"),
    "headers": (lambda value: value if type(value) is dict else dict(value), "a dict"),
    **dict.fromkeys(
        ("link", "link_error"),
        (
            lambda value: [each["task"] for each in maybe_list(value)],
            "a signature, or a list of these",
        ),
    ),
    "retry_policy": (_policy, "a dict of max_retries, interval_start and others"),
    "routing_key": (str.strip, "a text"),
    "queue": (lambda value: isinstance(value, Queue) or str.strip(value), "a name or a Queue"),
    **dict.fromkeys(("time_limit", "soft_time_limit"), (_limit, "seconds as a number from 0 up")),
}
