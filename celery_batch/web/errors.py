"""HTTP statuses for what a call of a task can fail with."""

from __future__ import annotations

import math
from functools import cache
from http import HTTPStatus
from typing import Any, NamedTuple

from amqp.exceptions import AccessRefused, NotAllowed
from billiard.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded, WorkerLostError
from celery.exceptions import TaskRevokedError
from celery.exceptions import TimeoutError as CeleryTimeoutError
from kombu.exceptions import EncodeError, OperationalError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_batch.compat.older_celery import is_lost_backend
from celery_batch.errors import (
    BatchError,
    DeadlineExceeded,
    OutOfMemory,
    PoisonItem,
    QueueFull,
    copied,
    raised_as,
)

__all__ = [
    "ERRORS",
    "LOGIN_REFUSED",
    "BackendUnreachable",
    "HttpError",
    "TaskFailed",
    "http_error",
    "task_error",
]

#: Characters of a message; some errors repeat their whole input.
_LONGEST = 500

#: Seconds after which a request that met a full queue or a missing server may succeed.
_RETRY_AFTER = 1.0

_TEMPORARY = {
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
}

#: What fails again, whatever its status.
_LASTING = (OutOfMemory, SoftTimeLimitExceeded, TimeLimitExceeded)

_NEVER_FITS = "One request has more items than the queue may hold; send fewer at a time."

_WOULD_BE_LATE = "The result would come too late: too much work waits already."

_EXPIRED = (504, "DeadlineExceeded", "No worker took the task in time.")

_REVOKED = (503, "TaskRevoked", "The task was revoked before it ran.")

_NO_BACKEND = (503, "BackendUnreachable", "The result backend cannot be reached.")

#: What py-amqp raises where RabbitMQ takes no user with this password, or has no such host.
LOGIN_REFUSED = (AccessRefused, NotAllowed)

#: Exceptions of Celery, billiard, kombu and py-amqp by their classes.
_CELERYS: tuple[tuple[tuple[type[Exception], ...], tuple[int, str, str]], ...] = (
    (
        (SoftTimeLimitExceeded, TimeLimitExceeded),
        (504, "TimeLimitExceeded", "The model took longer than its time limit."),
    ),
    ((WorkerLostError,), (503, "WorkerLost", "The worker process ended while it ran the task.")),
    ((CeleryTimeoutError,), (504, "DeadlineExceeded", "There was no answer in time.")),
    (
        (OperationalError, *LOGIN_REFUSED),
        (503, "BrokerUnreachable", "The broker cannot be reached."),
    ),
    ((RedisConnectionError, RedisTimeoutError), _NO_BACKEND),
    ((EncodeError,), (422, "EncodeError", "An input cannot be encoded for the task.")),
)


class BackendUnreachable(BatchError, OperationalError):
    """The result backend cannot be reached."""

    status_code = 503


class TaskFailed(Exception):
    """
    A second base class of what `predict` raises for a task that has failed.

    The first is the class of the task's own exception, so ``except ValueError`` still holds.
    Error handlers go by this one to tell a task's ValueError from one of the view itself.
    """

    #: Of the item that has failed, from 0; None for the only one.
    index: int | None = None


class HttpError(NamedTuple):
    """
    The error of an HTTP response.

    Args:
        status: The HTTP status.
        type: The kind of error, in one word for programs.
        message: The reason, for people; never a traceback.
        retry_after: Seconds after which the request may succeed; None if it never will.
        item_index: Of the item that has failed, from 0; None for the only one, or for all.
    """

    status: int
    type: str
    message: str
    retry_after: float | None = None
    item_index: int | None = None

    @property
    def headers(self) -> dict[str, str]:
        """The headers that go with the status."""
        if self.retry_after is None:
            return {}
        return {"Retry-After": str(max(1, math.ceil(self.retry_after)))}

    @property
    def body(self) -> dict[str, Any]:
        """The response's body, for JSON."""
        error = {"type": self.type, "message": self.message}
        return {"error": error if self.item_index is None else {**error, "index": self.item_index}}


def http_error(exception: BaseException) -> HttpError:
    """
    Return the HTTP status and message for an exception.

    A ValueError is the client's fault only where a task has failed with it, which makes it a
    `TaskFailed` too.  One of the view itself is an internal error.

    Args:
        exception: What `predict`, `apredict` or a result of Celery has raised.

    Returns:
        The error for the client; 500 without details for an unknown exception.
    """
    status, kind, message = _described(exception)
    retry_after = None
    if status in _TEMPORARY and not isinstance(exception, _LASTING):
        retry_after = getattr(exception, "retry_after", _RETRY_AFTER)
    if len(message) > _LONGEST:
        message = f"{message[:_LONGEST]}…"
    return HttpError(int(status), kind, message, retry_after, getattr(exception, "index", None))


def task_error(exception: BaseException) -> BaseException:
    """Return a copy of a task's exception that is a `TaskFailed`, too, if its class allows it."""
    own: Any = type(exception)
    try:
        kind = _failure_class(own)
        twin = kind.__new__(kind, *exception.args)
        twin.__dict__.update(vars(exception))
    except Exception:  # noqa: BLE001 (whatever a class of the user's raises)
        return copied(exception)
    twin.args = exception.args
    return raised_as(exception, twin)


@cache
def _failure_class(kind: Any) -> type[BaseException]:
    names = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
    }
    return type(kind.__name__, (kind, TaskFailed), names)


#: The exceptions that a framework hands to `http_error`.
ERRORS: tuple[type[Exception], ...] = (
    BatchError,
    TaskFailed,
    TaskRevokedError,
    *(kind for kinds, _ in _CELERYS for kind in kinds),
)


def _described(exception: BaseException) -> tuple[int, str, str]:
    name = type(exception).__name__
    if isinstance(exception, BatchError):
        never_fits = isinstance(exception, QueueFull) and exception.retry_after is None
        status = 413 if never_fits else exception.status_code
        return status, name, _NEVER_FITS if never_fits else _message_of(exception)
    if isinstance(exception, TaskRevokedError):
        return _EXPIRED if str(exception) == "expired" else _REVOKED
    is_of_task = isinstance(exception, TaskFailed)
    if is_of_task and isinstance(exception, ValueError):
        return 422, name, str(exception)
    # A model may use a broker of its own, which is nothing of the client's.
    for classes, described in _CELERYS[:2] if is_of_task else _CELERYS:
        if isinstance(exception, classes):
            return described
    if not is_of_task and is_lost_backend(exception):
        return _NO_BACKEND
    return 500, "InternalServerError", "The server could not answer the request."


def _message_of(exception: BatchError) -> str:
    """Return an error's own words, or its class's where the words are for the operator."""
    if isinstance(exception, QueueFull) and isinstance(exception, TaskFailed):
        return _WOULD_BE_LATE  # a worker has refused it, and not its caller
    is_for_client = exception.status_code < HTTPStatus.INTERNAL_SERVER_ERROR
    if isinstance(exception, DeadlineExceeded) or (
        is_for_client and not isinstance(exception, (PoisonItem, QueueFull))
    ):
        return str(exception)
    described = (type(exception).__doc__ or "").strip().splitlines()
    return described[0] if described else type(exception).__name__
