"""
Publishes calls, on the fast path or on Celery's.

The fast path takes the calls that it knows; all others take Celery's.  Both end in the same
message.  On Celery's path, receivers of signals, wrapped methods and special options see
everything as in Celery; only the write comes after all of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from kombu.utils.json import dumps

from celery_batch.client.background import PerProcess
from celery_batch.client.backpressure import Admission, QueueLimiter, items_of
from celery_batch.client.publish.buffer import (
    BulkWrite,
    PreparedMessage,
    SendBuffer,
    current_bulk,
)
from celery_batch.client.publish.confirms import ConfirmedBulk
from celery_batch.client.publish.fast_path import (
    Call,
    CallSeries,
    MessageTemplates,
    expect_result,
    is_plain_celery,
    why_slow,
    without_subscription,
)
from celery_batch.client.publish.message import (
    Fields,
    PublishSettings,
    RedisProducer,
    expiry_of,
    new_id,
)
from celery_batch.client.publish.transport import Transport
from celery_batch.client.results.listener import ResultReader, listener_for
from celery_batch.client_methods import ClientMethods
from celery_batch.protocol import REPLY_HEADER

__all__ = ["Publisher"]

logger = logging.getLogger(__name__)

#: Options that say how a message is published, so that it cannot be written with others.
_SINGLE = frozenset(("connection", "publisher", "producer", "retry", "retry_policy"))

#: Options by which a call differs from others of its kind in more than its arguments.
_OWN = frozenset(("producer", "root_id", "link", "link_error", "chain", "chord"))


class Publisher(PerProcess):
    """Sends one app's batch tasks from this process."""

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self._use(PublishSettings(app))
        self._send_buffer = SendBuffer(Transport(app).write)
        _log_fast_paths(app)

    def _use(self, settings: PublishSettings) -> None:
        self._settings = settings
        self._templates = MessageTemplates(self._app)
        self._limiter = QueueLimiter(self._app, settings)

    def send(self, task: Any, args: Any, kwargs: Any, options: dict[str, Any]) -> Any:
        """
        Send one call on the fast path; None if it has to take Celery's.

        Args:
            task: The task that is called.
            args: Positional arguments, or None.
            kwargs: Keyword arguments, or None.
            options: As `apply_async` takes them.

        Raises:
            TypeError: The arguments do not fit the task.
            OperationalError: The broker could not be reached, or refused the message.
        """
        settings = self._current_settings()
        if not (settings.bulk and settings.is_plain and is_plain_celery(self._app)):
            return None
        bulk = current_bulk(task, options)
        if "producer" in options and (bulk is None or bulk.app is None):
            return None  # not Celery's own, for all we know
        call = self._call(task, args, kwargs, options)
        frozen = bulk and bulk.frozen.get(options.get("task_id", ""))
        listener = self._listener(task, options, bulk, frozen)
        if not call.is_plain() or (call.parent and settings.inherits_priority):
            return None
        template = self._templates.template(task, call, reply=listener is not None)
        expiry = expiry_of(self._app, settings, call.expires)
        if template is None or expiry is None:
            return None
        call.check(task)
        task_id = options.get("task_id") or new_id()
        more = {**self._reply_fields(listener), **expiry}
        message = call.message(template, settings, task_id, more)
        if message is None:
            return None
        result = expect_result(task, options, task_id, listener, frozen)
        if bulk is None:
            self._send_buffer.send((message,))
        else:
            bulk.add(message, result, self._send_buffer)
        call.add_to_parent(result)
        return result

    def series(
        self, task: Any, options: dict[str, Any], own: Collection[str] = ()
    ) -> CallSeries | None:
        """
        Return a way to make many calls on the fast path; None if there is none, or none yet.

        Args:
            task: The task that is called.
            options: As `apply_async` takes them, the same for all.
            own: Those of ``expires`` and ``headers`` that each call has of its own, all of
                them or none.
        """
        app, settings = self._app, self._current_settings()
        call = self._call(task, (), {}, options)
        is_plain = settings.bulk and settings.is_plain and is_plain_celery(app)
        if not (is_plain and _is_usual(task, call)):
            return None
        listener = self._listener(task, options, None, None)
        template = self._templates.template(task, call, reply=listener is not None)
        common = call.common_fields(self._reply_fields(listener))
        bound = template and template.bind(
            {name: value for name, value in common.items() if name not in own}
        )
        if bound is None:
            return None
        router = app.amqp.router

        def holds() -> bool:
            is_same = settings.are_current(app.conf) and app.amqp.router is router
            return is_same and is_plain_celery(app)

        return CallSeries(task, call, settings, bound, listener, self._send_buffer, holds, self.pid)

    def send_as_celery_does(
        self, task: Any, apply: Callable[..., Any], args: Any, kwargs: Any, options: dict[str, Any]
    ) -> Any:
        """
        Send one call on Celery's path, and have our listener receive its result if it can.

        Args:
            task: The task that is called.
            apply: Celery's `apply_async`.
            args: Positional arguments, or None.
            kwargs: Keyword arguments, or None.
            options: As `apply_async` takes them.
        """
        bulk = current_bulk(task, options)
        apply = partial(apply, args, kwargs)
        if not self._current_settings().bulk or self._app.conf.task_always_eager:
            result = apply(**options)
            if bulk is not None:
                bulk.sent.append(result)
            return result
        headers = options.get("headers") or {}
        frozen = bulk and bulk.frozen.get(options.get("task_id", ""))
        listener = self._listener(task, options, bulk, frozen)
        if listener is None or REPLY_HEADER in headers:
            return self._apply(apply, options, bulk)
        task_id = options.get("task_id") or new_id()
        options = {**options, "task_id": task_id}
        result = expect_result(task, options, task_id, listener, frozen)
        options["headers"] = {**headers, REPLY_HEADER: listener.channel}
        with without_subscription(self._app):
            sent = self._apply(apply, options, bulk)
        result.ignored = sent.ignored
        return result

    def _apply(self, apply: Callable[..., Any], options: Any, bulk: BulkWrite | None) -> Any:
        """Send one call as Celery does; leave its message to a bulk write if that can take it."""
        if bulk is None:
            return apply(**options)
        is_canvas = bulk.app is not None
        if not (_SINGLE - {"producer"} if is_canvas else _SINGLE).isdisjoint(options):
            return self._apply_singly(partial(apply, **options), bulk)
        if bulk.confirmed is not None:
            return bulk.confirmed.send(apply, options)
        with self._app.producer_or_acquire(options.get("producer")) as producer:
            connection = producer.connection
            driver = connection.transport.driver_type
            if driver == "redis":
                collector = _Collector(producer)
                result = apply(**{**options, "producer": collector})
            confirms = connection.transport_options.get("confirm_publish")
        # With no producer held: the write needs one, and there may be no other.
        if driver == "redis" and collector.messages:
            bulk.add(collector.messages[0], result, self._send_buffer)
        elif driver == "redis":
            bulk.sent.append(result)
        elif driver == "amqp" and confirms and not is_canvas:
            bulk.confirmed = ConfirmedBulk(self._app, bulk)
            result = bulk.confirmed.send(apply, options)
        else:
            result = self._apply_singly(partial(apply, **options), bulk)
        return result

    def _apply_singly(self, apply: Callable[[], Any], bulk: BulkWrite) -> Any:
        bulk.flush()  # the order of the calls is kept
        bulk.close()
        result = apply()
        bulk.sent.append(result)
        return result

    def _call(self, task: Any, args: Any, kwargs: Any, options: dict[str, Any]) -> Call:
        own = task._get_exec_options()  # noqa: SLF001
        expires = options.get("expires", own.get("expires"))
        return Call(args, kwargs, options, self._app.current_worker_task, expires)

    def _reply_fields(self, listener: Any) -> Fields:
        channel = None if listener is None else listener.channel
        return {"reply_to": self._app.thread_oid, "reply": channel}

    def admit(self, task: Any, options: dict[str, Any]) -> Admission:
        """
        Return the context in which one call is sent, on whichever path.

        Args:
            task: The task that is called.
            options: As `apply_async` takes them.

        Raises:
            QueueFull: There is no room for it.
        """
        return self.limiter().admit(task, options, items_of(options))

    def is_eager(self) -> bool:
        """Return whether tasks are run at once, where they are called."""
        return self._current_settings().is_eager

    def limiter(self) -> QueueLimiter:
        """Return what admits calls or refuses them."""
        self._current_settings()
        return self._limiter

    def _current_settings(self) -> PublishSettings:
        if not self._settings.are_current(self._app.conf):
            self._use(PublishSettings(self._app))
        return self._settings

    def _listener(
        self, task: Any, options: dict[str, Any], bulk: BulkWrite | None, frozen: Any
    ) -> Any:
        """Return the listener that receives the call's result, if it may be waited for here."""
        if options.get("ignore_result", task.ignore_result):
            return None
        if not self._settings.has_headers or self._app.current_worker_task:
            return None
        if task.backend is not self._app.backend:
            return None  # the listener receives nothing that is stored elsewhere
        if bulk is not None and bulk.app is not None and frozen is None:
            return None  # a canvas has results of its own
        return listener_for(self._app)


class _Collector(RedisProducer):
    """A producer whose messages to Redis are written later, with others."""

    def __init__(self, producer: Any) -> None:
        super().__init__(producer)
        self.messages: list[PreparedMessage] = []

    def take(self, key: str, message: dict[str, Any]) -> None:
        self.messages.append(PreparedMessage(key, dumps(message)))


def _log_fast_paths(app: Any) -> None:
    """Log once in each process which fast paths can be taken, and why not the others."""
    if not logger.isEnabledFor(logging.INFO) or app.conf.task_always_eager:
        return
    try:
        reasons, kind = why_slow(app), type(app.backend).__name__
        is_received = ResultReader.supports(app.backend) and app.conf.get("batch_bulk", True)
    except Exception:  # noqa: BLE001 (the call itself meets it, and raises it)
        return
    logger.info(
        "Fast paths of %s here: publishing %s, results %s",
        app.main,
        f"off ({reasons})" if reasons else "on",
        "on" if is_received else f"off ({kind})",
    )


def _is_usual(task: Any, call: Call) -> bool:
    """Return whether a call needs nothing that is not the same for all of many."""
    if type(task).apply_async is not ClientMethods.apply_async or "apply_async" in vars(task):
        return False
    return not call.parent and call.is_plain() and _OWN.isdisjoint(call.options)
