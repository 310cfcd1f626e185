"""
Publishes calls, on the fast path or on Celery's.

The fast path takes the calls that it knows; all others take Celery's.  Both end in the same
message.  On Celery's path, receivers of signals, wrapped methods and special options see
everything as in Celery; only the write comes after all of it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from typing import Any

from kombu.exceptions import EncodeError, OperationalError
from kombu.utils.json import dumps

from celery_batch.call_options import warn_of_misspelt
from celery_batch.client.backpressure import QueueLimiter
from celery_batch.client.publish.buffer import (
    BulkWrite,
    PreparedMessage,
    SendBuffer,
    current_bulk,
)
from celery_batch.client.publish.confirms import ConfirmedBulk
from celery_batch.client.publish.message import (
    PublishSettings,
    RedisProducer,
    fast_repr,
    limit_connecting,
    new_id,
    sent_now,
)
from celery_batch.client.publish.series import Call, CallSeries, check_call, expect_result
from celery_batch.client.publish.templates import (
    AFTERWARDS,
    MessageTemplates,
    check_priority,
    embed_of,
    is_plain_celery,
    needs_sent_header,
    routes_by_maps,
    why_slow,
    without_subscription,
)
from celery_batch.client.publish.transport import Transport
from celery_batch.client.results.listener import is_cut_off, listener_for, why_not_notified
from celery_batch.client.results.result import adopt_groups
from celery_batch.client_methods import ClientMethods
from celery_batch.compat.fast_paths import PathState, states_in_words
from celery_batch.compat.older_celery import is_lost_backend
from celery_batch.compat.tasks import call_options
from celery_batch.config import require
from celery_batch.payloads.app_payloads import AppPayloads
from celery_batch.payloads.arguments import may_be_large, with_stored_values
from celery_batch.processes.per_process import PerProcess
from celery_batch.protocol import READS_PAYLOADS, REPLY_HEADER, SENT
from celery_batch.serialization.arrays import describe
from celery_batch.serialization.encode_errors import explained_call
from celery_batch.serialization.typed_json import escape_dicts

__all__ = ["Publisher"]

logger = logging.getLogger(__name__)

#: Options that say how a message is published, so that it cannot be written with others.
_SINGLE = frozenset(("retry", "retry_policy", "connection", "publisher", "producer"))

#: The headers that show a call's arguments.
_REPRS = ("argsrepr", "kwargsrepr")


class Publisher(PerProcess):
    """Sends one app's batch tasks from this process."""

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self._use(PublishSettings(app))
        self._send_buffer = SendBuffer(Transport(app).write)
        if not self._settings.is_stock:
            adopt_groups(app)
        _log_fast_paths(app)

    def _use(self, settings: PublishSettings) -> None:
        self._settings = settings
        self._templates = MessageTemplates(self._app)
        self._limiter = QueueLimiter(self._app, settings)

    def send(self, task: Any, args: Any, kwargs: Any, options: dict[str, Any]) -> Any:
        """Send one call, which was admitted, and return its result."""
        bulk = current_bulk(task, options)
        if "headers" in options or may_be_large(args, kwargs):
            uploads = None if bulk is None else bulk.uploads
            args, kwargs, options = with_stored_values(task, args, kwargs, options, uploads)
        call = Call(task, args, kwargs, options, bulk)
        result = self.send_fast(call)
        if result is not None:
            return result
        try:
            return self._send_as_celery_does(call)
        except Exception as error:
            explained = _explained(error, call)
            if explained is error:
                raise
            raise explained from error

    def send_fast(self, call: Call) -> Any:
        """Send one call on the fast path; return its result, or None if it has to take Celery's."""
        task, args, kwargs, options, bulk = call
        if "producer" in options and (bulk is None or bulk.app is None):
            return None  # not Celery's own, for all we know
        try:
            series = self._series(call)
        except OperationalError:
            check_call(task, args, kwargs, options.get("serializer"))
            raise
        return series and series.send(args, kwargs, bulk, frozen=call.frozen)

    def series(
        self,
        task: Any,
        options: dict[str, Any],
        own: Collection[str] = (),  # those of expires and headers that each call has of its own
    ) -> CallSeries | None:
        """Return what makes many calls on the fast path; None if there is none, or none yet."""
        is_ours = task.__class__.apply_async is ClientMethods.apply_async  # a proxy's task's, too
        if not is_ours or "apply_async" in vars(task) or "producer" in options:
            return None
        return self._series(Call(task, None, None, options), own)

    def _series(self, call: Call, own: Collection[str] = ()) -> CallSeries | None:
        """Return what makes a call, and others with its options."""
        app, settings, task = self._app, self._current_settings(), call.task
        parent = app.current_worker_task
        is_plain = settings.is_plain and is_plain_celery(app)
        if not is_plain or (parent and settings.inherits_priority):
            return None
        options = _read_as_parent(call.options, parent)
        expires = options.get("expires", call_options(task).get("expires"))
        listener = None if parent else self._listener(call)
        if listener is None and not parent and self._is_cut_off(call):
            return None  # Celery's path tries to reach the backend, or raises
        template = self._templates.template(task, options, expires, reply=listener is not None)
        if template is None:
            return None
        root_id, parent_id = _ancestors(options, parent)
        common = {
            "parent_id": parent_id,
            "group_id": options.get("group_id"),
            "group_index": options.get("group_index"),
            "reply_to": options.get("reply_to") or app.thread_oid,
            "shadow": options.get("shadow") or None,
            "reply": None if listener is None else listener.channel,
            "headers": options.get("headers"),
        }
        encoded = template.encode({name: common[name] for name in common if name not in own})
        if encoded is None:
            return None
        return CallSeries(
            task,
            options,
            expires,
            parent,
            settings,
            template,
            encoded,
            root_id,
            embed_of(template, options),
            listener,
            needs_sent_header(task, options.get("headers")),
            self._send_buffer,
        )

    def _send_as_celery_does(self, call: Call) -> Any:
        """Send one call on Celery's path, and have our listener receive its result if it can."""
        task = call.task
        check_priority(task, call.options)
        task_id = call.options.get("task_id")
        require(isinstance(task_id, str | None), f"{task.name}: task_id", "a text", task_id)
        if is_plain_celery(self._app) and routes_by_maps(self._app):  # else others may read them
            warn_of_misspelt(task, call.options)
        parent = self._app.current_worker_task
        options = _read_as_parent(call.options, parent)
        headers = options.get("headers") or {}
        if needs_sent_header(task, headers):
            headers = {**headers, SENT: sent_now()}
            options = {**options, "headers": headers}
        call = call._replace(options=options)
        settings = self._current_settings()
        if settings.is_stock or settings.is_eager:
            return self._apply(call)
        call = self._with_typed_values(call)
        listener = None if parent is not None else self._listener(call)
        if listener is None or REPLY_HEADER in headers:
            return self._apply(call)
        headers = {**headers, REPLY_HEADER: listener.channel}
        if AppPayloads.of(self._app).store is not None:
            headers[READS_PAYLOADS] = True
        task_id = task_id or new_id()
        options = {**call.options, "task_id": task_id, "headers": headers}
        result = expect_result(task, options, task_id, listener, call.frozen)
        with without_subscription(self._app):
            sent = self._apply(call._replace(options=options))
        result.ignored = sent.ignored
        return result

    def _with_typed_values(self, call: Call) -> Call:
        """Have Celery send a user's dicts as they are, and show the types and shapes of arrays."""
        task, args, kwargs, options, bulk = call
        settings = self._current_settings()
        limits = settings.args_limit, settings.kwargs_limit
        for name, value, limit in zip(_REPRS, (args, kwargs), limits, strict=True):
            if (described := describe(value)) is not value:
                options = {name: fast_repr(described, limit, settings.repr_levels), **options}
        serializer = options.get("serializer") or task.serializer or self._app.conf.task_serializer
        if serializer == "json":
            with suppress(RecursionError):  # on which Celery raises an error of its own
                args, kwargs = escape_dicts(args), escape_dicts(kwargs)
                later = {name: escape_dicts(options[name]) for name in AFTERWARDS & options.keys()}
                options = {**options, **later}
        return Call(task, args, kwargs, options, bulk)

    def _apply(self, call: Call) -> Any:
        """Send one call as Celery does; leave its message to a bulk write if that can take it."""
        options, bulk = call.options, call.bulk
        if bulk is None:
            return call.apply()
        try:
            single = _SINGLE if bulk.app is None else _SINGLE - {"producer"}  # a canvas' own
            is_single = not self._settings.bulk or self._settings.is_eager
            is_single = is_single or not single.isdisjoint(options)
            return (self._apply_singly if is_single else self._apply_in_bulk)(call, bulk)
        except OperationalError as error:
            if error is not bulk.uploads.failed.get(call.task_id):
                raise
        result = self._app.AsyncResult(call.task_id)  # of which no more than the id is used
        bulk.unsent.append(result)
        return result

    def _apply_in_bulk(self, call: Call, bulk: BulkWrite) -> Any:
        task_id = call.task_id
        if bulk.confirmed is None:
            with self._app.producer_or_acquire(call.options.get("producer")) as producer:
                connection = producer.connection
                driver = connection.transport.driver_type
                confirms = connection.transport_options.get("confirm_publish")
                limit_connecting(self._app, connection)
                if driver == "redis":
                    collector = RedisProducer(producer, partial(bulk.uploads.require, task_id))
                    result = call.apply(producer=collector)
            # With no producer held: the write needs one, and there may be no other.
            if driver == "redis":
                if collector.captured is None:  # it was sent
                    bulk.sent.append(result)
                else:
                    key, message = collector.captured
                    bulk.add(PreparedMessage(key, dumps(message)), result, self._send_buffer)
                return result
            if driver != "amqp" or not confirms or bulk.app is not None:
                return self._apply_singly(call, bulk)
        bulk.uploads.require(task_id)
        bulk.confirmed = bulk.confirmed or ConfirmedBulk(self._app, bulk)
        return bulk.confirmed.send(call)

    def _apply_singly(self, call: Call, bulk: BulkWrite) -> Any:
        bulk.flush()  # the order of the calls is kept
        bulk.close()
        bulk.uploads.require(call.task_id)
        result = call.apply()
        bulk.sent.append(result)
        return result

    def is_eager(self) -> bool:
        """Return whether tasks are run at once, where they are called."""
        return self._current_settings().is_eager

    def limiter(self) -> QueueLimiter:
        """Return what admits calls or refuses them."""
        self._current_settings()
        return self._limiter

    def _current_settings(self) -> PublishSettings:
        if not self._settings.is_current(self._app.conf):
            self._use(PublishSettings(self._app))
        return self._settings

    def _listener(self, call: Call) -> Any:
        """Return the listener that receives the result of a call that no task makes."""
        if not self._settings.has_headers or not self._has_result(call):
            return None
        if call.bulk is not None and call.bulk.app is not None and call.frozen is None:
            return None  # a canvas has results of its own
        return listener_for(self._app)

    def _has_result(self, call: Call) -> bool:
        """Return whether a call has a result, which is stored in the app's backend."""
        is_ignored = call.options.get("ignore_result", call.task.ignore_result)
        return not is_ignored and call.task.backend is self._app.backend

    def _is_cut_off(self, call: Call) -> bool:
        """Return whether a call has a result, and the backend could not be reached so far."""
        return is_cut_off(self._app) and self._has_result(call)


def _explained(error: Exception, call: Call) -> Exception:
    """Return an error of Celery's own sending in words that name the cause; others as they are."""
    task, args, kwargs, options, _ = call
    if isinstance(error, EncodeError):
        return explained_call(
            error, task, args, kwargs, options.get("serializer") or task.serializer
        )
    if is_lost_backend(error):  # Celery's own words are of a restart, which nothing here needs
        cause = error.__cause__ or error
        return OperationalError(f"The result backend cannot be reached: {cause}")
    return error


def _read_as_parent(options: dict[str, Any], parent: Any) -> dict[str, Any]:
    """Have who reads stored values of the calling task's result read those of the call's, too."""
    if not (parent and getattr(parent.request, READS_PAYLOADS, None)):
        return options
    return {**options, "headers": {**(options.get("headers") or {}), READS_PAYLOADS: True}}


def _ancestors(options: dict[str, Any], parent: Any) -> tuple[str | None, str | None]:
    """Return the ids of a call's root and parent; None for the root if it is the call itself."""
    root_id, parent_id = options.get("root_id"), options.get("parent_id")
    if parent:
        root_id = root_id or parent.request.root_id or parent.request.id
        parent_id = parent_id or parent.request.id
    return root_id, parent_id


def _log_fast_paths(app: Any) -> None:
    """Log once in each process which fast paths can be taken, and why not the others."""
    if not logger.isEnabledFor(logging.INFO) or app.conf.task_always_eager:
        return
    try:
        reasons = {"publish": why_slow(app), "notify": why_not_notified(app)}
    except Exception:  # noqa: BLE001 (the call itself meets it, and raises it)
        return
    words = states_in_words(PathState(name, reason) for name, reason in reasons.items())
    logger.info("Fast paths of %s here: %s", app.main, words)
