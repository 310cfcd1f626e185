"""The fast path of messages that use no rare Celery feature, to a queued request.

Celery's strategy computes for each message what is the same for all of them, and handles
every feature.  Here a message without rare features becomes one of Celery's own requests, in
the state in which Celery's strategy would leave it.  All other messages go to that strategy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from celery import signals
from celery.app import trace
from celery.exceptions import InvalidTaskError
from celery.utils.imports import symbol_by_name
from celery.worker import strategy
from celery.worker.request import create_request_cls
from celery.worker.state import revoked, task_reserved

from celery_batch.worker.intake.expiry import time_of
from celery_batch.worker.intake.request import wants_events
from celery_batch.worker.scheduling.scheduler import Scheduler

__all__ = [
    "FastPath",
]


class FastPath:
    """
    A batch task's strategy: the fast path, and Celery's own for all other messages.

    Args:
        consumer: Celery's consumer.
        scheduler: Its scheduler.
        task: The batch task.
        usual: Celery's own strategy for it.
        add: Adds Celery's request to its task queue.
    """

    def __init__(
        self,
        consumer: Any,
        scheduler: Scheduler,
        task: Any,
        usual: Callable[..., Any],
        add: Callable[[Any], None],
    ) -> None:
        self._consumer = consumer
        self._scheduler = scheduler
        self._task = task
        self._usual = usual
        self._add = add
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
        """Handle a message as Celery's strategy does."""
        return self._usual(*args, **kwargs)

    def admit(self, message: Any) -> bool:
        """
        Handle a message that uses no rare feature.

        Args:
            message: Checked, decoded unless its body is large, and of Celery's current protocol.

        Returns:
            Whether it was handled; if not, nothing has been done.
        """
        if self._is_rare(message):
            return False
        try:
            request = self._make(message)
        except InvalidTaskError:
            return False  # Celery reports it
        if self._logs:
            _log_received(request)
        if (request.expires or request.id in revoked) and request.revoked():
            return True
        task_reserved(request)
        for callback in self._consumer.on_task_message:
            callback(request)
        self._add(request)
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
        collects = self._scheduler.running_messages.collects
        later = partial(consumer.call_soon_ack, message.ack_log_error)
        return self._request(
            message,
            on_ack=message.ack_log_error if collects else later,
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
