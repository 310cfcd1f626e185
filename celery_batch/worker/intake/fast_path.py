"""The fast path of messages that use no rare Celery feature, to a queued request.

Celery's strategy asks of each message what is the same for all of them, and makes
objects for what hardly ever comes.  Here the common case is told first; Celery's own
request class is made of it, in the state that Celery's strategy would leave it in.
Everything else is left to that strategy.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from celery import signals
from celery.app import trace
from celery.exceptions import InvalidTaskError
from celery.utils.imports import symbol_by_name
from celery.utils.time import maybe_iso8601, maybe_make_aware
from celery.worker import strategy
from celery.worker.request import create_request_cls
from celery.worker.state import revoked, task_reserved

from celery_batch.worker.intake.request import wants_events

__all__ = [
    "Expiries",
    "FastPath",
    "time_of",
]


#: What Celery's clients write whose clock is UTC, as it is unless they say otherwise.
_USUAL = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}\+00:00")


def time_of(value: Any) -> Any:
    """
    Return a time that a header names, as Celery's `maybe_iso8601` does.

    Raises:
        ValueError: It is no time.
    """
    if type(value) is str and _USUAL.fullmatch(value):
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            return maybe_iso8601(value)  # which says so in its own way
    return maybe_iso8601(value)


class Expiries:
    """
    When the requests of one batch are wanted no more.

    Args:
        app: The Celery app.
        headers: For each request what its message says of it, or None.
    """

    def __init__(self, app: Any, headers: Iterable[Any]) -> None:
        said = {place: value for place, value in enumerate(headers) if value}
        zone = app.conf.timezone if said else None
        self._times = {n: maybe_make_aware(time_of(value), zone) for n, value in said.items()}
        self._first = min(self._times.values(), default=None)

    def passed(self) -> Collection[int]:
        """Return the places of those for whom it is too late."""
        now = datetime.now(UTC)
        if self._first is None or now <= self._first:
            return ()
        return {place for place, time in self._times.items() if now > time}


class FastPath:
    """
    A batch task's strategy: Celery's own, and the short way past it.

    Args:
        consumer: Celery's consumer.
        task: The batch task.
        usual: Celery's own strategy for it.
        line_up: Puts Celery's request in its lane.
    """

    def __init__(
        self,
        consumer: Any,
        task: Any,
        usual: Callable[..., Any],
        line_up: Callable[[Any], None],
    ) -> None:
        self._consumer = consumer
        self._task = task
        self._usual = usual
        self._line_up = line_up
        app, eventer = consumer.app, consumer.event_dispatcher
        self._eventer = eventer
        self._request = create_request_cls(
            symbol_by_name(task.Request), task, consumer.pool, consumer.hostname, eventer, app=app
        )
        # A property of each request, which looks it up in the settings.
        self._request.tzlocal = app.conf.timezone
        self._constant = {
            "app": app,
            "hostname": consumer.hostname,
            "eventer": eventer,
            "task": task,
            "connection_errors": consumer.connection_errors,
            "utc": app.uses_utc_timezone(),
            "maybe_iso8601": time_of,
        }
        self._logs = strategy.logger.isEnabledFor(logging.INFO)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Take a message as Celery's strategy does."""
        return self._usual(*args, **kwargs)

    def admit(self, message: Any) -> bool:
        """
        Take a message that asks for nothing rare.

        Args:
            message: Checked, decoded unless its body is large, and of Celery's current protocol.

        Returns:
            Whether it has been taken; if not, nothing has been done.
        """
        if self._is_rare(message):
            return False
        try:
            request = self._make(message)
        except InvalidTaskError:
            return False  # which Celery says in its own way
        if self._logs:
            _log_received(request)
        if (request.expires or request.id in revoked) and request.revoked():
            return True
        task_reserved(request)
        for callback in self._consumer.on_task_message:
            callback(request)
        self._line_up(request)
        return True

    def _is_rare(self, message: Any) -> bool:
        consumer = self._consumer
        return bool(
            message.headers.get("eta") is not None
            or not isinstance(message.payload, list)
            or signals.task_received.receivers
            or wants_events(self._eventer, self._task)
            or (not consumer.disable_rate_limits and consumer.task_buckets[self._task.name])
            # After a lost connection acknowledgements widen the prefetch again.
            or (consumer.restart_count and not consumer._maximum_prefetch_restored)  # noqa: SLF001
        )

    def _make(self, message: Any) -> Any:
        consumer = self._consumer
        later = partial(consumer.call_soon_ack, message.ack_log_error)
        return self._request(
            message,
            on_ack=message.ack_log_error if consumer.batch_running_messages.collects else later,
            on_reject=partial(consumer.call_soon_ack, message.reject_log_error),
            body=message.body,
            headers=message.headers,
            **self._constant,
        )


def _log_received(request: Any) -> None:
    context = {
        "id": request.id,
        "name": request.name,
        "args": request.argsrepr,
        "kwargs": request.kwargsrepr,
        "eta": request.eta,
    }
    strategy.logger.info(trace.LOG_RECEIVED, context, extra={"data": context})
