"""Checks a call's arguments, and the names and values of its options."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import cache
from inspect import signature
from typing import Any

from celery.utils.time import isoparse
from kombu.compression import get_encoder
from kombu.connection import Connection
from kombu.entity import Queue
from kombu.messaging import Producer
from kombu.utils.functional import maybe_list

from celery_batch.errors import ConfigurationError
from celery_batch.formatting import did_you_mean

__all__ = ["check_arguments", "check_options", "readable_options", "warn_of_misspelt"]

logger = logging.getLogger(__name__)

#: What Celery's router and kombu read beside the parameters of `send_task` and `publish`.
_OF_MESSAGES = (
    "queue",
    "exchange_type",
    "argsrepr",
    "kwargsrepr",
    "stamped_headers",
    "origin",
    "ignore_result",
    "message_id",
    "correlation_id",
    "user_id",
    "app_id",
    "type",
    "timestamp",
)

#: How alike names have to be for one to be a misspelt other, of 1.
_ALIKE = 0.75


def check_options(caller: str, app: Any, options: Mapping[str, Any], own: Collection[str]) -> None:
    """Raise TypeError for a name that is no option of a call, with the name that was meant."""
    stamps = options.get("stamped_headers") or ()
    kind: Any = type(app)
    known = {*_known(kind), *own, *stamps}
    for name in options:
        if name not in known:
            hint = did_you_mean(name, known)
            raise TypeError(f"{caller}() takes no option {name!r}{hint}")


@cache
def _known(app: Any) -> frozenset[str]:
    """Return the names of all options of a call, for a class of apps."""
    parameters = {*signature(app.send_task).parameters, *signature(Producer.publish).parameters}
    return frozenset({*_OF_MESSAGES, *parameters} - {"self", "options", "properties"})


def warn_of_misspelt(task: Any, options: Mapping[str, Any]) -> None:
    """Warn of what is no option of a call, but one of the task, or almost another's name."""
    kind: Any = type(task.app)
    stamps = options.get("stamped_headers") or ()
    for name in options.keys() - _known(kind) - {*stamps}:
        _warn_once(task.name, name, kind, is_of_task=hasattr(task, name))


@cache
def _warn_once(task_name: str, name: str, app: Any, *, is_of_task: bool) -> None:
    near = get_close_matches(name, _known(app), n=1, cutoff=_ALIKE)
    if is_of_task or near:
        hint = "it is an option of the task" if is_of_task else f"did you mean {near[0]}?"
        text = "%s: a call has no option %r, which nothing reads; %s"
        logger.warning(text, task_name, name, hint)


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
