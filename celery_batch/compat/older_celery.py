"""
What older releases of Celery lack, under one name for all of them.

Callers and workers import this, so it imports nothing of Celery's worker.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import cache
from importlib import import_module
from types import FunctionType
from typing import Any

from celery import states
from celery.app import base
from celery.app.defaults import DEFAULTS
from celery.backends import asynchronous
from celery.utils import time
from celery.utils.time import maybe_make_aware

__all__ = [
    "add_seconds_to_datetime",
    "call_soon_ack",
    "compression_of",
    "expiry_of_result",
    "is_lost_backend",
    "is_pydantic",
    "repr_levels",
    "subtract_datetimes",
    "success_was_stored",
]


def _add(at: datetime, seconds: float) -> datetime:
    return at + timedelta(seconds=seconds)


def _subtract(end: datetime, start: datetime) -> timedelta:
    return maybe_make_aware(end) - start  # type: ignore[no-any-return]


# Before 5.7 Celery adds and subtracts local times, whichever offsets from UTC they have.
add_seconds_to_datetime = getattr(time, "add_seconds_to_datetime", _add)
subtract_datetimes = getattr(time, "subtract_datetimes", _subtract)

#: The text of the RuntimeError that says that a result backend has been given up.
_RETRY_LIMIT_EXCEEDED = getattr(asynchronous, "E_RETRY_LIMIT_EXCEEDED", None)


def is_lost_backend(error: BaseException) -> bool:
    """Return whether Celery has given up reconnecting to a result backend."""
    if _RETRY_LIMIT_EXCEEDED is None:  # before 5.6 it raises what the Redis client has raised
        return isinstance(error, _redis_errors())
    return isinstance(error, RuntimeError) and str(error) == _RETRY_LIMIT_EXCEEDED


@cache
def _redis_errors() -> tuple[type[Exception], ...]:
    errors = import_module("redis.exceptions")  # which callers without Redis do not need
    return errors.ConnectionError, errors.TimeoutError


def repr_levels(conf: Any) -> int:
    """Return how deep the values of a message's argsrepr are nested; a setting since 5.7."""
    name = "task_repr_maxlevels"
    return int(conf[name]) if name in DEFAULTS else 3


def is_pydantic(task: Any) -> bool:
    """Return whether Celery validates the arguments of a task, or of a task class."""
    if getattr(task, "_dump_pydantic_arguments", None) is not None:
        return True
    # Before 5.7 nothing but the wrapper around its function shows it.
    return isinstance(task.run, FunctionType) and task.run.__globals__ is vars(base)


def compression_of(backend: Any) -> Any:
    """Return how a result backend compresses what it stores; none does before 5.7."""
    return getattr(backend, "compression", None)


def expiry_of_result(backend: Any, state: str) -> int | None:
    """Return the seconds after which a stored result expires; failures have their own since 5.7."""
    expires = getattr(backend, "failure_expires", None) if state == states.FAILURE else None
    return backend.expires if expires is None else expires  # type: ignore[no-any-return]


def call_soon_ack(consumer: Any) -> Callable[..., Any]:
    """Return what a Celery consumer calls acknowledgements with."""
    # Before 5.7 they wait, where there is no event loop, with everything that is called soon.
    found = getattr(consumer, "call_soon_ack", None)
    return consumer.call_soon if found is None else found  # type: ignore[no-any-return]


def success_was_stored(request: Any) -> Any:
    """Return a true value if a request's success was stored; before 5.7 Celery does not look."""
    look_up = getattr(request, "_success_was_stored", None)
    return look_up is not None and look_up()
