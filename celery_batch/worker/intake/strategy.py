"""
Celery's task strategy, with a last step that queues requests for batches.

Revoked, expired, ETA, rate limits, received events and bookkeeping stay Celery's
code.  Where it would hand a request to the pool, the request joins its task queue.

The fast path is for messages that use no rare Celery feature.  Celery's strategy computes for
each message what is the same for all of them, and handles every feature.  Here such a message
becomes one of Celery's own requests, in the state in which Celery's strategy would leave it.

A call may name any queue, so any batch task of the app may come to any worker.  Tasks that are
routed to a worker's queues are prepared at its start: their models are loaded, and the prefetch
is large enough for their batches.  Every other task is prepared when its first message comes: a
worker of ordinary tasks of the same app should not load models that it may never need.
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
from celery.worker.request import Request, create_request_cls
from celery.worker.state import revoked, task_ready, task_reserved

from celery_batch.compat.celery import RateLimits, has_full_prefetch
from celery_batch.compat.fast_paths import FastPaths
from celery_batch.compat.older_celery import call_soon_ack
from celery_batch.errors import ConfigurationError
from celery_batch.worker.bootsteps import ROUTE_IT_HERE, attach_steps, log_policy
from celery_batch.worker.consumer_context import ConsumerContext
from celery_batch.worker.intake.expiry import time_of
from celery_batch.worker.intake.request import BatchRequest, wants_events
from celery_batch.worker.scheduling import prefetch
from celery_batch.worker.scheduling.scheduler import Scheduler
from celery_batch.worker.scheduling.task_queue import TaskQueue

__all__ = ["FastPath", "batches"]

logger = logging.getLogger(__name__)

#: What a worker logs when it was not started with `-E`.
_EVENTS_TURNED_ON = (
    "Task events were turned on at run time: each item costs three messages more, and the intake"
    " fast path is off; Flower turns them on every five seconds unless it has"
    " --enable_events=False"
)


def batches(task: Any, app: Any, consumer: Any) -> Callable[..., Any]:
    """Return a handler for the messages of a batch task; called by Celery for each connection."""
    if not ConsumerContext.is_attached(consumer):
        return partial(_attach_and_handle, task, app, consumer)
    context = ConsumerContext.of(consumer)
    scheduler = context.scheduler
    task.Request = _request_class(task)
    task_queue = scheduler.task_queue(task)
    add: Callable[[Any], None] = partial(scheduler.add, task_queue)
    if task not in context.worker.tasks:
        add = partial(_add_unrouted, consumer, task_queue)
    usual = strategy.default(task, app, _ConsumerProxy(consumer, scheduler, add))
    if not FastPaths.of(app).is_on("intake"):
        return usual  # type: ignore[no-any-return]
    return FastPath(consumer, scheduler, task, usual, add)


def _request_class(task: Any) -> type:
    """Return a task's class of requests; with ours behind it, if it has another of Celery's."""
    own: type = symbol_by_name(task.Request)
    if own is Request:
        return BatchRequest
    if issubclass(own, BatchRequest):
        return own
    return type(own.__name__, (own, BatchRequest), {"__module__": own.__module__})


def _attach_and_handle(task: Any, app: Any, consumer: Any, *message: Any, **options: Any) -> Any:
    """Handle the first message of a batch task that was defined after this worker's start."""
    if not ConsumerContext.is_attached(consumer):  # else another task's message came first
        attach_steps(consumer)
    handle = consumer.strategies[task.name] = batches(task, app, consumer)
    return handle(*message, **options)


class _ConsumerProxy(RateLimits):
    """The consumer as Celery's strategy sees it, with another last step."""

    def __init__(
        self, consumer: Any, scheduler: Scheduler, on_task_request: Callable[[Any], None]
    ) -> None:
        self._consumer = consumer
        self._scheduler = scheduler
        self.on_task_request = on_task_request

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def apply_eta_task(self, request: Any) -> None:
        """As the consumer's own, which would hand the request to the pool."""
        if self.was_taken_over(request):
            task_ready(request)
        else:
            task_reserved(request)
            if not request.revoked():  # or expired
                self.on_task_request(request)
        self._consumer.qos.decrement_eventually()

    def was_taken_over(self, request: Any) -> bool:
        """Return whether another worker has taken a request that waited here."""
        return self._scheduler.running_messages.was_taken_over(request)


class FastPath:
    """A batch task's strategy: the fast path, and Celery's own for all other messages."""

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
        #: Whether task events were on from the start, or it was logged that they are on now.
        self._knows_events = wants_events(eventer, task)
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
        self._call_soon_ack = call_soon_ack(consumer)
        self._logs = strategy.logger.isEnabledFor(logging.INFO)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Handle a message as Celery's strategy does."""
        return self._usual(*args, **kwargs)

    def admit(self, message: Any) -> bool:
        """Handle a checked message; return False, with nothing done, if it uses a rare feature."""
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
            (wants_events(self._eventer, self._task) and self._note_events())
            or message.headers.get("eta") is not None
            or not isinstance(message.payload, list)
            or signals.task_received.receivers
            or (not consumer.disable_rate_limits and consumer.task_buckets[self._task.name])
            # After a lost connection acknowledgements widen the prefetch again.
            or (consumer.restart_count and not has_full_prefetch(consumer))
        )

    def _note_events(self) -> bool:
        """Log once for a worker that task events were turned on; return that they are on."""
        if not self._knows_events:
            self._knows_events = True
            worker = ConsumerContext.of(self._consumer).worker
            if not worker.has_noted_events:
                worker.has_noted_events = True
                logger.warning("%s", _EVENTS_TURNED_ON)
        return True

    def _make(self, message: Any) -> Any:
        acknowledge, call_soon = message.ack_log_error, self._call_soon_ack
        collects = self._scheduler.running_messages.collects
        request = self._request(
            message,
            on_ack=acknowledge if collects else partial(call_soon, acknowledge),
            on_reject=partial(call_soon, message.reject_log_error),
            body=message.body,
            headers=message.headers,
            **self._constant,
        )
        message.headers = request.request_dict  # which has all of them, and is kept
        return request


def _log_received(request: Any) -> None:
    context = {
        "id": request.id,
        "name": request.name,
        "args": request.argsrepr,
        "kwargs": request.kwargsrepr,
        "eta": request.eta,
    }
    strategy.logger.info(trace.LOG_RECEIVED, context, extra={"data": context})


def _add_unrouted(consumer: Any, task_queue: TaskQueue, request: Any) -> None:
    """Add a request to its task queue, and prepare the worker for its task if it is the first."""
    context = ConsumerContext.of(consumer)
    if task_queue.task not in context.worker.tasks:
        _serve(consumer, context, task_queue.task)
    context.scheduler.add(task_queue, request)


def _serve(consumer: Any, context: ConsumerContext, task: Any) -> None:
    worker = context.worker
    worker.tasks.append(task)
    context.validator.limit_all()
    prefetch.warn_about_limits(consumer.controller, prefetch.messages_per_process(worker.tasks))
    prefetch.adjust_prefetch(consumer, context.scheduler.policy)
    log_policy(task)
    if task.model is not None:
        logger.warning(
            "%s comes to a queue that it was not routed to when this worker started: this"
            " request loads its model, and waits for it; %s",
            task.name,
            ROUTE_IT_HERE,
        )
        if worker.warm_up is not None:
            worker.warm_up.add(task.name)
    try:
        worker.serve_metrics(list(consumer.app.amqp.queues.consume_from))
    except ConfigurationError as error:
        logger.error("No metrics: %s", error)  # noqa: TRY400 (its message says it all)
