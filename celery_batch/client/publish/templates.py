"""Decides which calls the fast path can send, and keeps the templates of their messages."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import FunctionType, NoneType
from typing import Any

from celery import Celery, Task, signals
from celery.app import amqp, base, task
from celery.app.routes import MapRoute
from celery.backends.base import Backend
from celery.backends.redis import RedisBackend
from celery.exceptions import QueueNotFound
from kombu import messaging
from kombu.exceptions import OperationalError, SerializerNotInstalled
from kombu.utils.functional import maybe_list

from celery_batch.broker_depth import driver_of
from celery_batch.client.publish.amqp_message import AmqpProbe, AmqpTemplate
from celery_batch.client.publish.message import (
    Form,
    RedisProbe,
    Template,
    limit_connecting,
    send_probe,
)
from celery_batch.client_methods import ClientMethods
from celery_batch.compat.fast_paths import FastPaths
from celery_batch.compat.kombu import library_errors
from celery_batch.compat.older_celery import is_pydantic
from celery_batch.compat.tasks import call_options
from celery_batch.config import HIGHEST_PRIORITY
from celery_batch.errors import ConfigurationError
from celery_batch.protocol import SENT

__all__ = [
    "AFTERWARDS",
    "AnyTemplate",
    "MessageTemplates",
    "check_priority",
    "embed_of",
    "is_plain_celery",
    "needs_sent_header",
    "routes_by_maps",
    "why_slow",
    "without_subscription",
]

logger = logging.getLogger(__name__)

#: For one broker or the other.
AnyTemplate = Template | AmqpTemplate

#: Options that say what comes after.
AFTERWARDS = frozenset(("link", "link_error", "chain", "chord"))

#: Options that are the same in all messages of one kind.
_OF_KIND = frozenset(
    (
        "queue",
        "routing_key",
        "priority",
        "serializer",
        "delivery_mode",
        "time_limit",
        "soft_time_limit",
        "retries",
        "ignore_result",
    )
)

#: Options that differ from call to call, each with the types for which a template has room;
#: None for any.
_OF_CALL: dict[str, tuple[type, ...] | None] = {
    **dict.fromkeys(
        ("task_id", "root_id", "parent_id", "group_id", "reply_to", "shadow"), (str, NoneType)
    ),
    "group_index": (int, NoneType),
    "headers": (dict, NoneType),
    **dict.fromkeys((*AFTERWARDS, "add_to_parent", "producer", "expires")),
}

#: Types of the values of `_OF_KIND`.
_PLAIN = frozenset((str, int, float, bool, type(None)))

#: By the broker's driver.
_PROBES: dict[str, type[RedisProbe | AmqpProbe]] = {"redis": RedisProbe, "amqp": AmqpProbe}

#: Most kinds of messages that are remembered.
_MOST = 1000


def check_priority(task: Any, options: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for a priority that no message can have."""
    priority = options.get("priority", getattr(task, "priority", None))
    if priority is None:
        return
    # An older caller's message may have more on Redis; its retries and its chain go on with that.
    most = HIGHEST_PRIORITY if task.app.current_worker_task is None else math.inf
    is_whole = isinstance(priority, int) and not isinstance(priority, bool)
    if not (is_whole and 0 <= priority <= most):
        raise ConfigurationError(
            f"{task.name}: priority: must be a whole number from 0 to {HIGHEST_PRIORITY}, got"
            f" {priority!r}"
        )


def needs_sent_header(task: Any, headers: Mapping[str, Any] | None) -> bool:
    """Return whether a call's message says when it was sent, of which its headers say nothing."""
    return task.target_latency is not None and SENT not in (headers or ())


def embed_of(template: AnyTemplate, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the third part of a body: callbacks and what comes after."""
    if AFTERWARDS.isdisjoint(options):
        return template.embed
    return {
        **template.embed,
        "callbacks": maybe_list(options.get("link")),
        "errbacks": maybe_list(options.get("link_error")),
        "chain": options.get("chain"),
        "chord": options.get("chord"),
    }


#: Whether our listener receives the results of what this thread or coroutine sends.
_is_received: ContextVar[bool] = ContextVar("celery_batch_is_received", default=False)


@contextmanager
def without_subscription(app: Any) -> Iterator[None]:
    """Keep the app's backend from subscribing to what this thread or coroutine sends meanwhile."""
    # Celery's flag for it would hold for all threads, and keep them from waiting.
    backend = app.backend
    if "on_task_call" not in vars(backend):
        own = backend.on_task_call

        def on_task_call(producer: Any, task_id: str) -> None:
            if not _is_received.get():
                own(producer, task_id)

        backend.on_task_call = on_task_call
    token = _is_received.set(True)
    try:
        yield
    finally:
        _is_received.reset(token)


#: Set while Celery sends a callback, which it tries again in a way of its own.
_sending_callback: ContextVar[bool] = getattr(
    amqp, "_callback_publish_retry", ContextVar("none", default=False)
)

_SIGNALS = (signals.before_task_publish, signals.after_task_publish, signals.task_sent)


def _own(method: Any, module: Any) -> Any:
    """Return a method as its module defines it, or what no method is, if it was wrapped."""
    # Not by the file's name: code that was moved after it was compiled names another one.
    is_own = isinstance(method, FunctionType) and method.__globals__ is vars(module)
    return method if is_own else object()


_APPLY = _own(Task.apply_async, task)
_SEND = _own(Celery.send_task, base)
_PUBLISH = _own(messaging.Producer.publish, messaging)


def is_plain_celery(app: Any) -> bool:
    """Return whether only Celery takes part in a call: no receiver of signals, no wrapper."""
    return (
        Task.apply_async is _APPLY
        and type(app).send_task is _SEND
        and messaging.Producer.publish is _PUBLISH
        and not any(signal.receivers for signal in _SIGNALS)
        and not _sending_callback.get()
    )


def why_slow(app: Any) -> str:
    """Return why calls take Celery's path; an empty text if they do not have to."""
    driver, paths = driver_of(app), FastPaths.of(app)
    reasons = {
        paths.state("amqp_frames").reason: driver == "amqp",
        paths.state("publish").reason: True,
        f"the broker is {driver}": driver not in _PROBES,
        "Task.apply_async is wrapped": Task.apply_async is not _APPLY,
        "send_task is overridden": type(app).send_task is not _SEND,
        "Producer.publish is wrapped": messaging.Producer.publish is not _PUBLISH,
        "a publishing signal has receivers": any(signal.receivers for signal in _SIGNALS),
        "task_send_sent_event is on": bool(app.conf.task_send_sent_event),
        "the app has an AMQP class of its own": type(app.amqp) is not amqp.AMQP,
        "a route is a function": not routes_by_maps(app),
    }
    return ", ".join(reason for reason, holds in reasons.items() if reason and holds)


def routes_by_maps(app: Any) -> bool:
    """Return whether no function of the user's chooses where an app's calls go."""
    return all(isinstance(route, MapRoute) for route in app.amqp.router.routes)


class MessageTemplates:
    """The templates of one app's messages."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._router: Any = None
        self._known: dict[Any, AnyTemplate | None] = {}

    def template(
        self, task: Any, options: dict[str, Any], expires: Any, *, reply: bool
    ) -> AnyTemplate | None:
        """Return the template for a call; None if it has none, or none yet."""
        router = self._app.amqp.router
        if router is not self._router or len(self._known) > _MOST:
            self._router, self._known = router, {}
        of_kind = []
        for name, value in options.items():
            if name in _OF_KIND:
                if type(value) not in _PLAIN:
                    return None
                of_kind.append((name, value, type(value)))
            else:
                types = _OF_CALL.get(name, ())
                if types is not None and type(value) not in types:
                    return None
        headers = options.get("headers")
        form = Form(reply, expires is not None, bool(headers), needs_sent_header(task, headers))
        kind = (task.name, task.ignore_result, form, *of_kind)
        try:
            return self._known[kind]
        except KeyError:
            check_priority(task, options)
            given = {name: value for name, value, _ in of_kind}
            self._known[kind] = None  # the first one takes Celery's path, which declares the queue
            self._probe(kind, task, given, options.get("producer"))
            return None

    def _probe(self, kind: Any, task: Any, given: dict[str, Any], producer: Any) -> None:
        app, form = self._app, kind[2]
        options = {"ignore_result": task.ignore_result, **call_options(task), **given}
        driver = driver_of(app) if producer is None else producer.connection.transport.driver_type
        probe_class = _PROBES.get(driver)
        if driver == "amqp" and not FastPaths.of(app).is_on("amqp_frames"):
            return
        is_stock = type(app.amqp) is amqp.AMQP and routes_by_maps(app)
        if probe_class is None or not is_stock or not _is_plain(task, options):
            return
        probe = None
        try:
            with without_subscription(app), app.producer_or_acquire(producer) as own:
                connection = own.connection
                limit_connecting(app, connection)
                if driver == "amqp" and connection.transport_options.get("confirm_publish"):
                    return  # these have a path of their own
                with library_errors(connection):
                    probe = probe_class(own)
                    send_probe(task, options, probe, form)
                    self._known[kind] = probe.template(form)
        except (ConfigurationError, OperationalError, QueueNotFound, SerializerNotInstalled):
            self._known.pop(kind, None)  # Celery's path meets it too, and raises it
            if probe is None:
                raise  # after all tries to connect, which it would make once more
        except Exception:
            logger.warning("%s: messages are sent one by one", task.name, exc_info=True)


def _is_plain(task: Any, options: dict[str, Any]) -> bool:
    """Return whether a task's messages depend on nothing but its options."""
    kind = task.__class__  # a proxy's task's, too
    on_call = type(task.backend).on_task_call
    return (
        kind.shadow_name is Task.shadow_name
        and not any(
            "AsyncResult" in vars(base)
            for base in kind.__mro__
            if base not in (ClientMethods, Task)
        )
        and not is_pydantic(task)
        and not (task.soft_time_limit and task.time_limit)
        and (
            options["ignore_result"] or on_call in (Backend.on_task_call, RedisBackend.on_task_call)
        )
    )
