"""Publishes calls, on the fast path or on Celery's.

Whatever listens to signals, wraps a method or gives an option of its own finds
everything as ever; only the write comes after all of it.

It takes the calls that it knows; all others go Celery's own road.  Both end in the
same message.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from kombu.utils.json import dumps

from celery_batch.client.backpressure import Passage, QueueAdmission, items_of
from celery_batch.client.publish.buffer import Gathering, PreparedMessage, SendBuffer, gathered
from celery_batch.client.publish.confirms import ConfirmedBurst
from celery_batch.client.publish.fast_path import (
    Call,
    CallTemplates,
    Series,
    expected,
    is_plain_celery,
    unsubscribed,
    why_singly,
)
from celery_batch.client.publish.message import Fields, MessageMaker, Terms, expiry_of, new_id
from celery_batch.client.publish.transport import Transport
from celery_batch.client.results.listener import ResultStore, listener_for
from celery_batch.client.results.result import BatchResult
from celery_batch.client_methods import ClientMethods
from celery_batch.protocol import REPLY_HEADER

__all__ = [
    "CeleryPath",
    "Publisher",
]


#: Options that say how or where a message is published.
_OTHER_WAYS = frozenset(("connection", "publisher", "producer", "retry", "retry_policy"))


class CeleryPath:
    """
    Sends calls as Celery does.

    Args:
        app: The Celery app.
        send_buffer: Writes messages to Redis.
    """

    def __init__(self, app: Any, send_buffer: SendBuffer) -> None:
        self._app = app
        self._send_buffer = send_buffer

    def send(self, apply: Callable[..., Any], options: Any, gathering: Gathering | None) -> Any:
        """
        Send one call.

        Args:
            apply: Celery's `apply_async` with the call's arguments.
            options: The call's options.
            gathering: Where messages are kept, if they are.
        """
        if gathering is None:
            return apply(**options)
        is_canvas = gathering.app is not None
        ways = _OTHER_WAYS - {"producer"} if is_canvas else _OTHER_WAYS
        if not ways.isdisjoint(options):
            return self._singly(partial(apply, **options), gathering)
        if gathering.burst is not None:
            return gathering.burst.send(apply, options)
        with self._app.producer_or_acquire(options.get("producer")) as producer:
            connection = producer.connection
            is_redis = connection.transport.driver_type == "redis"
            if is_redis:
                prepared_messages: list[PreparedMessage] = []
                writer = _Writer(producer, prepared_messages)
                result = apply(**{**options, "producer": writer})
            confirms = not is_canvas and _confirms(connection)
        # With no producer in hand: whoever writes needs one, and there may be no other.
        if is_redis and prepared_messages:
            gathering.add(prepared_messages[0], result, self._send_buffer)
        elif is_redis:
            gathering.sent.append(result)
        elif confirms:
            gathering.burst = ConfirmedBurst(self._app, gathering)
            result = gathering.burst.send(apply, options)
        else:
            result = self._singly(partial(apply, **options), gathering)
        return result

    def _singly(self, apply: Callable[[], Any], gathering: Gathering) -> Any:
        gathering.flush()  # first come, first served
        gathering.close()
        result = apply()
        gathering.sent.append(result)
        return result


def _confirms(connection: Any) -> bool:
    is_amqp = connection.transport.driver_type == "amqp"
    return bool(is_amqp and connection.transport_options.get("confirm_publish"))


class _Writer(MessageMaker):
    """
    A producer whose messages to Redis are written with others, later.

    Args:
        producer: Celery's.
        prepared_messages: Where they are left.
    """

    def __init__(self, producer: Any, prepared_messages: list[PreparedMessage]) -> None:
        super().__init__(producer.channel, auto_declare=False)
        self.serializer, self._prepared_messages = producer.serializer, prepared_messages

    def take(self, key: str, message: dict[str, Any]) -> None:
        self._prepared_messages.append(PreparedMessage(key, dumps(message)))


logger = logging.getLogger(__name__)


#: Options by which a call differs from others of its kind in more than its arguments.
_OWN = frozenset(("producer", "root_id", "link", "link_error", "chain", "chord"))


class Publisher:
    """
    Sends one app's batch tasks from this process.

    Args:
        app: The Celery app.
    """

    def __init__(self, app: Any) -> None:
        self.pid = os.getpid()
        self._app = app
        self._terms = Terms(app)
        self._templates = CallTemplates(app)
        self._room = QueueAdmission(app, self._terms)
        self._send_buffer = SendBuffer(Transport(app).write)
        self._celery_path = CeleryPath(app, self._send_buffer)
        _log_fast_paths(app)

    @classmethod
    def of(cls, app: Any) -> Publisher:
        """Return the app's publisher in this process; a fork has its own."""
        found: Publisher | None = app.__dict__.get("batch_publisher")
        if found is None or found.pid != os.getpid():
            found = app.__dict__["batch_publisher"] = cls(app)
        return found

    def send(self, task: Any, args: Any, kwargs: Any, options: dict[str, Any]) -> Any:
        """
        Send one call on the short road; None if it has to go Celery's own.

        Args:
            task: The task that is called.
            args: Positional arguments, or None.
            kwargs: Keyword arguments, or None.
            options: As `apply_async` takes them.

        Raises:
            TypeError: The arguments do not fit the task.
            OperationalError: The broker could not be reached, or refused the message.
        """
        terms = self._settled()
        if not (terms.bulk and terms.is_plain and is_plain_celery(self._app)):
            return None
        gathering = gathered(task, options)
        if "producer" in options and (gathering is None or gathering.app is None):
            return None  # not Celery's own, for all we know
        call = self._call(task, args, kwargs, options)
        frozen = gathering and gathering.frozen.get(options.get("task_id", ""))
        listener = self._listener(task, options, gathering, frozen)
        if not call.is_plain() or (call.parent and terms.inherits_priority):
            return None
        template = self._templates.template(task, call, reply=listener is not None)
        expiry = expiry_of(self._app, terms, call.expires)
        if template is None or expiry is None:
            return None
        call.check(task)
        task_id = options.get("task_id") or new_id()
        prepared = call.prepared(template, terms, task_id, {**self._told(listener), **expiry})
        if prepared is None:
            return None
        if listener is None or frozen is not None or options.get("task_id"):
            result = expected(task, task_id, listener, frozen)
            result.ignored = options.get("ignore_result", task.ignore_result)
        else:
            result = BatchResult.of_call(task_id, self._app, listener.registry.expect_new(task_id))
        if gathering is None:
            self._send_buffer.send((prepared,))
        else:
            gathering.add(prepared, result, self._send_buffer)
        call.leave_trail(result)
        return result

    def series(
        self, task: Any, options: dict[str, Any], own: Collection[str] = ()
    ) -> Series | None:
        """
        Return a way to make many calls on the short road; None if there is none, or none yet.

        Args:
            task: The task that is called.
            options: As `apply_async` takes them, the same for all.
            own: Those of ``expires`` and ``headers`` that each call has of its own, all of
                them or none.
        """
        app, terms = self._app, self._settled()
        call = self._call(task, (), {}, options)
        if not (terms.bulk and terms.is_plain and is_plain_celery(app) and _is_usual(task, call)):
            return None
        listener = self._listener(task, options, None, None)
        template = self._templates.template(task, call, reply=listener is not None)
        constants = call.constants(self._told(listener))
        same = {name: value for name, value in constants.items() if name not in own}
        settled = template and template.settle(same)
        if settled is None:
            return None
        router = app.amqp.router

        def holds() -> bool:
            is_same = terms.hold(app.conf) and app.amqp.router is router
            return is_same and is_plain_celery(app)

        return Series(task, call, terms, settled, listener, self._send_buffer, holds, self.pid)

    def send_as_celery_does(
        self, task: Any, apply: Callable[..., Any], args: Any, kwargs: Any, options: dict[str, Any]
    ) -> Any:
        """
        Send one call on Celery's own road, and have its answer told to us where it can be.

        Args:
            task: The task that is called.
            apply: Celery's `apply_async`.
            args: Positional arguments, or None.
            kwargs: Keyword arguments, or None.
            options: As `apply_async` takes them.
        """
        gathering = gathered(task, options)
        own = partial(apply, args, kwargs)
        if not self._settled().bulk or self._app.conf.task_always_eager:
            result = own(**options)
            if gathering is not None:
                gathering.sent.append(result)
            return result
        headers = options.get("headers") or {}
        frozen = gathering and gathering.frozen.get(options.get("task_id", ""))
        listener = self._listener(task, options, gathering, frozen)
        if listener is None or REPLY_HEADER in headers:
            return self._celery_path.send(own, options, gathering)
        task_id = options.get("task_id") or new_id()
        result = expected(task, task_id, listener, frozen)
        headers = {**headers, REPLY_HEADER: listener.channel}
        with unsubscribed(self._app):
            options = {**options, "task_id": task_id, "headers": headers}
            done = self._celery_path.send(own, options, gathering)
        result.ignored = done.ignored
        return result

    def _call(self, task: Any, args: Any, kwargs: Any, options: dict[str, Any]) -> Call:
        own = task._get_exec_options()  # noqa: SLF001
        expires = options.get("expires", own.get("expires"))
        return Call(args, kwargs, options, self._app.current_worker_task, expires)

    def _told(self, listener: Any) -> Fields:
        channel = None if listener is None else listener.channel
        return {"reply_to": self._app.thread_oid, "reply": channel}

    def passage(self, task: Any, options: dict[str, Any]) -> Passage:
        """
        Return the context in which one call is sent, whichever road it goes.

        Args:
            task: The task that is called.
            options: As `apply_async` takes them.

        Raises:
            QueueFull: There is no room for it.
        """
        return self.room().passage(task, options, items_of(options))

    def is_eager(self) -> bool:
        """Return whether tasks are run at once, where they are called."""
        return self._settled().is_eager

    def room(self) -> QueueAdmission:
        """Return what lets calls pass, or refuses them."""
        self._settled()
        return self._room

    def _settled(self) -> Terms:
        terms = self._terms
        if not terms.hold(self._app.conf):
            terms = self._terms = Terms(self._app)
            self._templates = CallTemplates(self._app)
            self._room = QueueAdmission(self._app, terms)
        return terms

    def _listener(
        self, task: Any, options: dict[str, Any], gathering: Gathering | None, frozen: Any
    ) -> Any:
        """Return who hears of the call's answer, if somebody may wait for it here."""
        if options.get("ignore_result", task.ignore_result):
            return None
        if not self._terms.has_headers or self._app.current_worker_task:
            return None
        if task.backend is not self._app.backend:
            return None  # the listener hears of nothing that is kept elsewhere
        if gathering is not None and gathering.app is not None and frozen is None:
            return None  # a canvas has results of its own
        return listener_for(self._app)


def _log_fast_paths(app: Any) -> None:
    """Say once in each process what of the fast paths can be taken, and why not the others."""
    if not logger.isEnabledFor(logging.INFO) or app.conf.task_always_eager:
        return
    try:
        singly, kind = why_singly(app), type(app.backend).__name__
        is_told = ResultStore.supports(app.backend) and app.conf.get("batch_bulk", True)
    except Exception:  # noqa: BLE001 (the call itself meets it, and says so)
        return
    logger.info(
        "Fast paths of %s here: publishing %s, results %s",
        app.main,
        f"off ({singly})" if singly else "on",
        "on" if is_told else f"off ({kind})",
    )


def _is_usual(task: Any, call: Call) -> bool:
    """Return whether a call needs nothing that is not the same for all of many."""
    is_asked_so = type(task).apply_async is ClientMethods.apply_async and "apply_async" not in vars(
        task
    )
    return is_asked_so and not call.parent and call.is_plain() and _OWN.isdisjoint(call.options)
