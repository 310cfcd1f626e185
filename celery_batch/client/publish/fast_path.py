"""Decides which calls the fast path can send, and makes their messages."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import FunctionType, MappingProxyType
from typing import Any, NamedTuple

from celery import Celery, Task, signals
from celery.app import amqp, base, task
from celery.app.routes import MapRoute
from celery.backends.base import Backend
from celery.backends.redis import RedisBackend
from celery.exceptions import QueueNotFound
from kombu import messaging
from kombu.exceptions import OperationalError
from kombu.utils.functional import maybe_list

from celery_batch.broker_depth import driver_of
from celery_batch.client.publish.amqp_message import AmqpTemplate
from celery_batch.client.publish.buffer import Gathering, PreparedMessage, SendBuffer
from celery_batch.client.publish.message import (
    Fields,
    Form,
    Template,
    Terms,
    described,
    expiry_of,
    new_id,
)
from celery_batch.client.results.listener import listener_for
from celery_batch.client.results.result import BatchResult
from celery_batch.client_methods import ClientMethods

__all__ = [
    "AnyTemplate",
    "Call",
    "CallTemplates",
    "Series",
    "expected",
    "foreseen",
    "is_plain_celery",
    "unsubscribed",
    "why_singly",
]


#: For one broker or the other.
AnyTemplate = Template | AmqpTemplate


#: Options that are texts, or nothing.
_TEXTS = frozenset(("task_id", "root_id", "parent_id", "group_id", "reply_to", "shadow"))


#: Options that say what comes after.
_AFTERWARDS = frozenset(("link", "link_error", "chain", "chord"))


class Call(NamedTuple):
    """
    What `apply_async` was given.

    Args:
        args: Positional arguments, or None.
        kwargs: Keyword arguments, or None.
        options: Its options.
        parent: The task that calls, if one does.
        expires: When it is to run no more, by its options or by its task's.
    """

    args: Any
    kwargs: Any
    options: dict[str, Any]
    parent: Any
    expires: Any = None

    def is_plain(self) -> bool:
        """Return whether its options have the types that a template has room for."""
        options = self.options
        for name in options:
            value = options[name]
            if name in _TEXTS and not (value is None or type(value) is str):
                return False
        headers, index = options.get("headers"), options.get("group_index")
        if not (headers is None or type(headers) is dict):
            return False
        return index is None or type(index) is int

    def check(self, task: Any) -> None:
        """
        Check the arguments as Celery does.

        Raises:
            TypeError: They do not fit the task.
        """
        args, kwargs = self.args or (), self.kwargs or {}
        if task.typing:
            task.__header__(*args, **kwargs)
        if not isinstance(args, (list, tuple)):
            raise TypeError("task args must be a list or tuple")

    def prepared(
        self, template: AnyTemplate, terms: Terms, task_id: str, told: Fields
    ) -> PreparedMessage | None:
        """
        Return the message; None if it has no place for one of its options.

        Args:
            template: For its kind.
            terms: The app's settings.
            task_id: Its id.
            told: ``reply_to`` and ``reply``: where to Celery and we would have the answer;
                and what is to be said of its expiry.
        """
        options, args, kwargs = self.options, self.args or (), self.kwargs or {}
        root_id, parent_id = options.get("root_id"), options.get("parent_id")
        if self.parent:
            root_id = root_id or self.parent.request.root_id or self.parent.request.id
            parent_id = parent_id or self.parent.request.id
        values: Fields = {
            **told,
            **self.constants(told),
            "task_id": task_id,
            "root_id": root_id or task_id,
            "parent_id": parent_id,
            "argsrepr": described(args, terms.args_limit, terms.repr_levels),
            "kwargsrepr": described(kwargs, terms.kwargs_limit, terms.repr_levels),
        }
        return template.prepared((args, kwargs, self._embed(template)), values)

    def constants(self, told: Fields) -> Fields:
        """Return what all calls with these options have, as `letter` is told."""
        options = self.options
        return {
            "parent_id": options.get("parent_id"),
            "group_id": options.get("group_id"),
            "group_index": options.get("group_index"),
            "reply_to": options.get("reply_to") or told["reply_to"],
            "shadow": options.get("shadow") or None,
            "reply": told["reply"],
            "headers": options.get("headers"),
        }

    def leave_trail(self, result: Any) -> None:
        """Tell the task that calls of its child."""
        if self.parent and self.options.get("add_to_parent", True):
            self.parent.add_trail(result)

    def _embed(self, template: AnyTemplate) -> dict[str, Any]:
        options = self.options
        if _AFTERWARDS.isdisjoint(options):
            return template.embed
        return {
            **template.embed,
            "callbacks": maybe_list(options.get("link")),
            "errbacks": maybe_list(options.get("link_error")),
            "chain": options.get("chain"),
            "chord": options.get("chord"),
        }


def expected(task: Any, task_id: str, listener: Any, frozen: Any = None) -> Any:
    """
    Return the result of a call that is about to be sent.

    Args:
        task: The task that is called.
        task_id: The call's id.
        listener: Who hears its answer; None for Celery's own way.
        frozen: The result, if there is one already.
    """
    result = task.AsyncResult(task_id) if frozen is None else frozen
    if listener is not None and isinstance(result, BatchResult):
        listener.expect(result)
    return result


def foreseen(app: Any, tasks: Iterable[Any], frozen: dict[str, Any]) -> Iterator[Any]:
    """
    Have the members of a group hear of their answers, where they are batch tasks.

    Args:
        app: The Celery app.
        tasks: Of each member its signature, its result and the group's id.
        frozen: Is given the results that hear, by their tasks' ids.
    """
    for signature, result, group_id in tasks:
        if isinstance(result, BatchResult) and not signature.subtask_type:
            task = app.tasks.get(signature.task)
            is_told = isinstance(task, ClientMethods) and task.backend is app.backend
            if is_told and listener_for(app) is not None:
                frozen[result.id] = result
        yield signature, result, group_id


_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Series(NamedTuple):
    """
    Calls of one task with the same options, by nobody's order and in nobody's name.

    Args:
        task: The task that is called.
        call: One of them, without arguments.
        terms: The app's settings.
        template: For their kind, its blanks filled in where all calls have the same.
        listener: Who hears their answers; None if nobody does.
        send_buffer: Of the app.
        still_holds: Whether all of this is as it was.
        pid: Of this process.
    """

    task: Any
    call: Call
    terms: Terms
    template: AnyTemplate
    listener: Any
    send_buffer: SendBuffer
    still_holds: Callable[[], bool]
    pid: int

    def holds(self) -> bool:
        """Return whether another call can be made: settings and listeners may change any time."""
        return self.pid == os.getpid() and self.still_holds()

    def send(
        self, args: Any, kwargs: Any, gathering: Gathering, own: Mapping[str, Any] = _NOTHING
    ) -> Any:
        """
        Make a call, and return its result; None if it has to go Celery's own road.

        Args:
            args: Positional arguments, or None.
            kwargs: Keyword arguments, or None.
            gathering: Keeps the message until it is written.
            own: The options that this series has left to its calls, all of them.

        Raises:
            TypeError: The arguments do not fit the task.
        """
        task, terms = self.task, self.terms
        call = self.call._replace(args=args, kwargs=kwargs)
        call.check(task)
        expiry = expiry_of(task.app, terms, own.get("expires", call.expires))
        if expiry is None:
            return None
        args, kwargs = args or (), kwargs or {}
        task_id = new_id()
        values: Fields = {
            "task_id": task_id,
            "root_id": task_id,
            "argsrepr": described(args, terms.args_limit, terms.repr_levels),
            "kwargsrepr": described(kwargs, terms.kwargs_limit, terms.repr_levels),
            **expiry,
        }
        if "headers" in own:
            values["headers"] = own["headers"]
        prepared = self.template.prepared((args, kwargs, self.template.embed), values)
        if prepared is None:
            return None
        if self.listener is None:
            result = expected(task, task_id, None)
            result.ignored = call.options.get("ignore_result", task.ignore_result)
        else:
            result = BatchResult.of_call(
                task_id, task.app, self.listener.registry.expect_new(task_id)
            )
        gathering.add(prepared, result, self.send_buffer)
        return result


_is_told: ContextVar[bool] = ContextVar("celery_batch_is_told", default=False)


@contextmanager
def unsubscribed(app: Any) -> Iterator[None]:
    """
    Keep the app's backend from subscribing to what this thread or coroutine sends meanwhile.

    Celery's flag for it would hold for all threads, and keep them from waiting.

    Args:
        app: The Celery app.
    """
    backend = app.backend
    if "on_task_call" not in vars(backend):
        own = backend.on_task_call

        def on_task_call(producer: Any, task_id: str) -> None:
            if not _is_told.get():
                own(producer, task_id)

        backend.on_task_call = on_task_call
    token = _is_told.set(True)
    try:
        yield
    finally:
        _is_told.reset(token)


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


class CallTemplates:
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
        driver = driver_of(app) if producer is None else producer.connection.transport.driver_type
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
            "AsyncResult" in vars(base)
            for base in kind.__mro__
            if base not in (ClientMethods, Task)
        )
        and task._dump_pydantic_arguments is None  # noqa: SLF001
        and not (task.soft_time_limit and task.time_limit)
        and (
            options["ignore_result"] or on_call in (Backend.on_task_call, RedisBackend.on_task_call)
        )
    )
