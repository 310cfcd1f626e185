"""A call on its way, and calls of one task that have in common what is computed once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from kombu.exceptions import EncodeError

from celery_batch.client.publish.buffer import BulkWrite, SendBuffer
from celery_batch.client.publish.message import (
    Fields,
    PublishSettings,
    expiry_of,
    fast_repr,
    new_id,
    sent_now,
    serialized_body,
)
from celery_batch.client.publish.templates import AnyTemplate
from celery_batch.client.results.listener import listener_for
from celery_batch.client.results.result import BatchResult
from celery_batch.client_methods import ClientMethods
from celery_batch.compat.kombu import is_of_closed_channel
from celery_batch.serialization.encode_errors import explained_call

__all__ = ["NO_OPTIONS", "Call", "CallSeries", "check_call", "expect_members", "expect_result"]


def expect_result(
    task: Any, options: Mapping[str, Any], task_id: str, listener: Any, frozen: Any
) -> Any:
    """Return the result of a call that is about to be sent: `frozen`, if there is one already."""
    if listener is not None and frozen is None and not options.get("task_id"):
        return BatchResult.of_call(task_id, task.app, listener.registry.expect_new(task_id))
    result = task.AsyncResult(task_id) if frozen is None else frozen
    if listener is None:
        result.ignored = options.get("ignore_result", task.ignore_result)
    elif isinstance(result, BatchResult):
        result.pending_result = listener.registry.expect(result.pending_result)
    return result


def expect_members(app: Any, tasks: Iterable[Any], frozen: dict[str, Any]) -> Iterator[Any]:
    """Have the listener receive the results of a group's batch tasks, and add them to `frozen`."""
    for signature, result, group_id in tasks:
        if isinstance(result, BatchResult) and not signature.subtask_type:
            task = app.tasks.get(signature.task)
            is_ours = isinstance(task, ClientMethods) and task.backend is app.backend
            if is_ours and listener_for(app) is not None:
                frozen[result.id] = result
        yield signature, result, group_id


def check_call(task: Any, args: Any, kwargs: Any, serializer: Any = None) -> None:
    """Raise why a call's arguments cannot be sent: it comes before any error of the broker."""
    _check_header(task, args or (), kwargs or {})
    serializer = serializer or task.serializer
    try:
        serialized_body((args or (), kwargs or {}, {}), serializer)
    except EncodeError as error:
        raise explained_call(error, task, args, kwargs, serializer) from error


def _check_header(task: Any, args: Any, kwargs: Any) -> None:
    if task.typing and (check := getattr(task, "__header__", None)):  # else a class's task
        check(*args, **kwargs)


#: The options of calls that have none.
NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


class Call(NamedTuple):
    """One call on its way to a message."""

    task: Any
    args: Any
    kwargs: Any
    options: dict[str, Any]  # as `apply_async` takes them
    bulk: BulkWrite | None = None  # that takes its message; None to send it at once

    @property
    def task_id(self) -> str:
        """Its task's id; empty if it has none yet."""
        return self.options.get("task_id") or ""

    @property
    def frozen(self) -> Any:
        """Its result, if there is one before the call is made, as in a canvas."""
        return self.bulk and self.bulk.frozen.get(self.task_id)

    def apply(self, **changed: Any) -> Any:
        """Make it as Celery does, with other options, and return its result."""
        apply, options = _celery_apply_async(self.task), {**self.options, **changed}
        try:
            return apply(self.args, self.kwargs, **options)
        except AttributeError as error:
            if not is_of_closed_channel(error):
                raise
        return apply(self.args, self.kwargs, **options)


def _celery_apply_async(task: ClientMethods) -> Any:
    return super(ClientMethods, task).apply_async


class CallSeries(NamedTuple):
    """Calls of one task with the same options."""

    task: Any
    options: Mapping[str, Any]  # as `apply_async` takes them
    expires: Any  # by the options or by the task's
    parent: Any  # the task that calls, if one does
    settings: PublishSettings
    template: AnyTemplate
    common: dict[Any, Any]  # the fields that are the same for all, encoded
    root_id: str | None  # of all; None where each call is its own root
    embed: dict[str, Any]  # the third part of their bodies
    listener: Any  # receives the results; None if Celery does
    needs_sent_header: bool  # whether messages say when they were sent
    send_buffer: SendBuffer

    def send(
        self,
        args: Any,
        kwargs: Any,
        bulk: BulkWrite | None,  # None to write at once
        *,
        own: Mapping[str, Any] = NO_OPTIONS,  # what the series has left to its calls; the task_id
        frozen: Any = None,
    ) -> Any:
        """Make a call, and return its result; None if it has to take Celery's path."""
        task, settings, options, template = self.task, self.settings, self.options, self.template
        expiry = expiry_of(task.app, settings, own.get("expires", self.expires))
        if expiry is None:
            return None
        args, kwargs = args or (), kwargs or {}
        _check_header(task, args, kwargs)
        task_id = own.get("task_id") or options.get("task_id") or new_id()
        values: Fields = {
            "task_id": task_id,
            "root_id": self.root_id or task_id,
            "argsrepr": fast_repr(args, settings.args_limit, settings.repr_levels),
            "kwargsrepr": fast_repr(kwargs, settings.kwargs_limit, settings.repr_levels),
            **expiry,
        }
        if self.needs_sent_header:
            values["sent"] = sent_now()
        if "headers" in own:
            values["headers"] = own["headers"]
        encoded = template.encode(values)
        if encoded is None:
            return None
        try:
            message = template.render((args, kwargs, self.embed), {**self.common, **encoded})
        except EncodeError as error:
            raise explained_call(error, task, args, kwargs, template.serializer) from error
        result = expect_result(task, options, task_id, self.listener, frozen)
        if bulk is None:
            self.send_buffer.send((message,))
        else:
            bulk.add(message, result, self.send_buffer)
        if self.parent and options.get("add_to_parent", True):
            self.parent.add_trail(result)
        return result
