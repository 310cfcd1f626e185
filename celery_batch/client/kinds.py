"""Which calls the short road knows, and the template for each kind of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import ContextVar
from types import FunctionType
from typing import Any

from celery import Celery, Task, signals
from celery.app import amqp, base, task
from celery.app.routes import MapRoute
from celery.backends.base import Backend
from celery.backends.redis import RedisBackend
from celery.exceptions import QueueNotFound
from kombu import messaging
from kombu.exceptions import OperationalError

from celery_batch.asking import Asking
from celery_batch.client.amqp_template import AmqpTemplate
from celery_batch.client.call import AnyTemplate, Call
from celery_batch.client.lesson import Form
from celery_batch.client.template import Template
from celery_batch.client.unsubscribed import unsubscribed

__all__ = ["Kinds", "is_plain_celery", "why_singly"]

logger = logging.getLogger(__name__)

#: Options that are the same in all messages of one kind.
_OF_KIND = frozenset(
    [
        "queue",
        "routing_key",
        "priority",
        "serializer",
        "delivery_mode",
        "time_limit",
        "soft_time_limit",
        "retries",
        "ignore_result",
    ]
)
#: Options that differ from call to call.
_OF_CALL = frozenset(
    [
        "task_id",
        "root_id",
        "parent_id",
        "group_id",
        "group_index",
        "reply_to",
        "add_to_parent",
        "shadow",
        "link",
        "link_error",
        "chain",
        "chord",
        "producer",
        "expires",
        "headers",
    ]
)
_PLAIN = frozenset((str, int, float, bool, type(None)))

#: By the broker.
_LEARN: dict[str, Callable[..., AnyTemplate | None]] = {
    "redis": Template.learn,
    "amqp": AmqpTemplate.learn,
}

#: Most kinds of messages that are remembered.
_MOST = 1000

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
    """
    Return whether a call passes nobody on Celery's own road.

    Tracing libraries and applications listen to signals, and wrap or override methods.
    """
    return (
        Task.apply_async is _APPLY
        and type(app).send_task is _SEND
        and messaging.Producer.publish is _PUBLISH
        and not any(signal.receivers for signal in _SIGNALS)
        and not _sending_callback.get()
    )


def why_singly(app: Any) -> str:
    """Return why calls go Celery's own road; an empty text if they do not have to."""
    with app.connection_for_write() as connection:
        driver = connection.get_transport_cls().driver_type
    reasons = {
        "batch_bulk is False": not app.conf.get("batch_bulk", True),
        f"the broker is {driver}": driver not in _LEARN,
        "Task.apply_async is wrapped": Task.apply_async is not _APPLY,
        "send_task is overridden": type(app).send_task is not _SEND,
        "Producer.publish is wrapped": messaging.Producer.publish is not _PUBLISH,
        "a publishing signal has receivers": any(signal.receivers for signal in _SIGNALS),
        "task_send_sent_event is on": bool(app.conf.task_send_sent_event),
        "the app has an AMQP class of its own": type(app.amqp) is not amqp.AMQP,
        "a route is a function": not _are_maps(app.amqp.router.routes),
    }
    return ", ".join(reason for reason, holds in reasons.items() if holds)


def _are_maps(routes: Any) -> bool:
    return all(isinstance(route, MapRoute) for route in routes)


class Kinds:
    """
    The templates of one app's messages.

    Args:
        app: The Celery app.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._router: Any = None
        self._known: dict[Any, AnyTemplate | None] = {}

    def template(self, task: Any, call: Call, *, reply: bool) -> AnyTemplate | None:
        """
        Return the template for a call; None if it has none, or none yet.

        The first message of a kind goes Celery's own road, which also declares its queue.

        Args:
            task: The task that is called.
            call: The call.
            reply: Whether the message says where its answer is told.
        """
        router = self._app.amqp.router
        if router is not self._router or len(self._known) > _MOST:
            self._router, self._known = router, {}
        options, of_kind = call.options, []
        for name, value in options.items():
            if name in _OF_KIND:
                if type(value) not in _PLAIN:
                    return None
                of_kind.append((name, value, type(value)))
            elif name not in _OF_CALL:
                return None
        form = Form(reply, call.expires is not None, bool(options.get("headers")))
        kind = (task.name, task.ignore_result, form, *of_kind)
        try:
            return self._known[kind]
        except KeyError:
            self._learn(kind, task, options.get("producer"))
            return None

    def _learn(self, kind: Any, task: Any, producer: Any) -> None:
        own = task._get_exec_options()  # noqa: SLF001
        form, *of_kind = kind[2:]
        options = {**own, **{name: value for name, value, _ in of_kind}}
        options.setdefault("ignore_result", task.ignore_result)
        learn = self._way_to_learn(producer) if _is_plain(task, options) else None
        if learn is None:
            self._known[kind] = None
            return
        try:
            with unsubscribed(self._app), self._app.producer_or_acquire(producer) as one:
                self._known[kind] = learn(task, options, one, form)
        except (OperationalError, QueueNotFound):
            pass  # Celery's own road meets it too, and says so
        except Exception:
            self._known[kind] = None
            logger.warning("%s: messages are sent singly", task.name, exc_info=True)

    def _way_to_learn(self, producer: Any) -> Callable[..., AnyTemplate | None] | None:
        app = self._app
        with app.producer_or_acquire(producer) as one:
            driver = one.connection.transport.driver_type
        if type(app.amqp) is amqp.AMQP and _are_maps(app.amqp.router.routes):
            return _LEARN.get(driver)
        return None


def _is_plain(task: Any, options: dict[str, Any]) -> bool:
    """Return whether nothing in a task's messages depends on what is called."""
    kind = type(task)
    on_call = type(task.backend).on_task_call
    return (
        kind.shadow_name is Task.shadow_name
        and not any(
            "AsyncResult" in vars(base) for base in kind.__mro__ if base not in (Asking, Task)
        )
        and task._dump_pydantic_arguments is None  # noqa: SLF001
        and not (task.soft_time_limit and task.time_limit)
        and (
            options["ignore_result"] or on_call in (Backend.on_task_call, RedisBackend.on_task_call)
        )
    )
