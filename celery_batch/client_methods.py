"""
The client methods of a batch task: `delay_many`, `adelay` and others.

`celery_batch.client` is imported with the first call.
"""

from __future__ import annotations

# redis imports this with its first call, which may be too late while the interpreter ends.
import concurrent.futures.thread  # noqa: F401
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import Any, ClassVar

from celery import Task

from celery_batch.call_options import check_arguments, readable_options
from celery_batch.compat.tasks import send_groups_with
from celery_batch.defaults import Items, Seconds
from celery_batch.item_lists import refuse_one_value

__all__ = ["ClientMethods"]

#: What Celery's `apply_async` takes by position after the call's arguments.
_POSITIONAL = ("task_id", "producer", "link", "link_error", "shadow")


class ClientMethods(Task):  # type: ignore[misc]
    """A task whose calls take a fast path to the broker, with the same message as Celery's."""

    abstract = True

    #: Most items that may wait in the task's queue; the next call raises `QueueFull` at once.
    max_queue: ClassVar[Items | None] = None

    #: What the items that wait in the task's queue may cost, at the mean cost of those that this
    #: process has sent lately; None is any cost.
    max_queue_cost: ClassVar[float | None] = None

    #: Time from the sending of a call to its stored result that batches are to keep. The worker
    #: chooses their size, and when they leave, for it; None is no target.
    target_latency: ClassVar[Seconds | None] = None

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Make groups send their batch tasks in one write."""
        super().on_bound(app)
        send_groups_with(_send_group)

    def apply_async(self, args: Any = None, kwargs: Any = None, *more: Any, **options: Any) -> Any:
        """
        Send a call, as in any task.

        Args:
            args: Positional arguments.
            kwargs: Keyword arguments.
            more: Celery's other positional parameters.
            options: Celery's options: ``countdown`` and ``expires`` in seconds, ``queue``, ``link``
                and so on.

        Returns:
            The call's `BatchResult`.

        Raises:
            TypeError: The arguments do not fit the task's function.
            ConfigurationError: An option has a value that Celery cannot read.
            EncodeError: An argument cannot be serialized; the error names it.
            OperationalError: The broker could not be reached, or refused the message.
            QueueFull: As many items wait already as ``max_queue`` or ``max_queue_cost`` allows.
            BrokerUnreachable: An `OperationalError`, too: with ``max_queue``, the broker does
                not answer, so the number of waiting items is unknown.
        """
        if more:
            named = dict(zip(_POSITIONAL, more, strict=False))
            if len(named) < len(more) or not named.keys().isdisjoint(options):
                return super().apply_async(args, kwargs, *more, **options)  # its TypeError
            given = {name: value for name, value in named.items() if value is not None}
            options = {**options, **given}
        if options:
            options = readable_options(self, options)
        if type(args) is not tuple or kwargs:
            check_arguments(self, args, kwargs)
        publisher = _client("publish.publisher").Publisher.of(self.app)
        with publisher.limiter().admit(self, options, call=(args, kwargs)):
            return publisher.send(self, args, kwargs, options)

    def AsyncResult(self, task_id: str, **options: Any) -> Any:  # noqa: N802 (Celery's name)
        """
        Return the result of a call, a `BatchResult` unless another base class overrides this.

        Args:
            task_id: The call's id.
            options: Celery's, such as ``parent``, the result before it in a chain.
        """
        own = super().AsyncResult
        if own.__func__ is not Task.AsyncResult:
            return own(task_id, **options)
        result = _client("results.result").BatchResult
        return result(task_id, backend=self.backend, app=self.app, **options)

    def apply(self, *args: Any, **options: Any) -> Any:
        """
        Run a call at once, in this process; see Celery's `Task.apply`.

        The value is returned as it is; one that a worker could not store is a failure.

        Args:
            args: Celery's parameters.
            options: The same by name.

        Raises:
            EncodeError: A worker could not store the value, and ``throw`` is given.
        """
        result = super().apply(*args, **options)
        return _client("results.result").EagerBatchResult.checked(self, result, options)

    async def adelay(self, *args: Any, **kwargs: Any) -> Any:
        """Send a call from a coroutine, and return its `BatchResult`; see `aapply_async`."""
        return await self.aapply_async(args, kwargs)

    async def aapply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """
        Send a call from a coroutine; see `apply_async`.

        It returns when the broker has the message.  The event loop is not blocked, and calls of
        several coroutines share their writes.
        """
        options = readable_options(self, options)
        check_arguments(self, args, kwargs)
        return await _client("publish.aio").apply_async(self, args, kwargs, options)

    def delay_many(self, items: Iterable[Any]) -> list[Any]:
        """
        Send one call for each item, all in one write; return their results in order.

        Args:
            items: The only argument of each call.

        Returns:
            A `BatchResult` for each item.

        Raises:
            PartlySent: Only some could be sent; the error says which.
            QueueFull: There is not enough room for all; none was sent.
            TypeError: ``items`` is no list, or the task takes several arguments.
            EncodeError: An item cannot be serialized; the error names it.
        """
        self._refuse_items(items)
        return self.apply_many(((item,), None) for item in items)

    def apply_many(self, rows: Iterable[Any], **options: Any) -> list[Any]:
        """
        Send one call for each row, all in one write; return their results in order.

        Args:
            rows: Positional and keyword arguments of each call, as in ``((1,), None)``; either
                may be None.
            options: As for `apply_async`, the same for all; no ``task_id``.

        Returns:
            A `BatchResult` for each row.

        Raises:
            PartlySent: Only some could be sent; the error says which.
            QueueFull: There is not enough room for all; none was sent.
            TypeError: A row is something else.
        """
        refuse_one_value("apply_many()", rows, "[((item,), None)]")
        options = readable_options(self, options)
        return _client("publish.send_many").apply_many(self, rows, options)  # type: ignore[no-any-return]

    def _refuse_items(self, items: Iterable[Any]) -> None:
        """Raise TypeError for what is no list of items, and if a call takes several arguments."""
        refuse_one_value("delay_many()", items)
        check = getattr(self, "__header__", None)
        if self.typing and check:
            try:
                check(None)
            except TypeError as error:
                raise TypeError(
                    f"delay_many() gives each call one argument: {error}; write"
                    f" apply_many([((a, b), None), ...]) for several"
                ) from None

    async def adelay_many(self, items: Iterable[Any]) -> list[Any]:
        """Send one call for each item from a coroutine; see `delay_many`."""
        self._refuse_items(items)
        return await self.aapply_many(((item,), None) for item in items)

    async def aapply_many(self, rows: Iterable[Any], **options: Any) -> list[Any]:
        """
        Send one call for each row from a coroutine; see `apply_many`.

        The calls are written in a thread, and the event loop goes on meanwhile.
        """
        refuse_one_value("apply_many()", rows, "[((item,), None)]")
        options = readable_options(self, options)
        return await _client("publish.aio").aapply_many(self, rows, options)  # type: ignore[no-any-return]

    def _apply_chunks(self, chunks: Iterable[Any], options: dict[str, Any]) -> list[Any]:
        """Send chunks in one write, as a backfill does; see `publish.send_many`."""
        return _client("publish.send_many").apply_chunks(self, chunks, options)  # type: ignore[no-any-return]

    def _forget_many(self, results: Iterable[Any]) -> None:
        """Forget results together, as a backfill does; see `celery_batch.client.results.result`."""
        _client("results.result").forget_many(results)

    def is_served(self, queue: Any = None, *, timeout: float | None = 3.0) -> bool:
        """
        Return whether a worker takes calls of this task and has loaded its models.

        The first call asks the broker. Later ones return what was known at most a second ago,
        without asking, if there is at least one call every five seconds.

        Args:
            queue: The queue of the calls; the one that the task is routed to if None.
            timeout: Seconds to wait for the broker; None for as long as it takes.

        Raises:
            OperationalError: The broker has not answered.
        """
        return _client("served").is_served(self, queue, timeout)  # type: ignore[no-any-return]

    async def ais_served(self, queue: Any = None, *, timeout: float | None = 3.0) -> bool:  # noqa: ASYNC109 (as its twin)
        """Return whether a worker takes calls of this task, from a coroutine; see `is_served`."""
        return await _client("served").ais_served(self, queue, timeout)  # type: ignore[no-any-return]

    def backfill(
        self,
        items: Iterable[Any],
        *,
        window: int | None = None,
        in_order: bool = True,
        **options: Any,
    ) -> Any:
        """
        Run any number of items, a bounded number at a time, with the lowest priority.

        Args:
            items: Read as there is room for them; a mapping with a key for each
                parameter is spread, anything else, tuples too, is the only argument.
            window: Most items in progress; by default enough to keep the workers busy.
            in_order: Yield outputs in the items' order; else as they arrive.
            options: As for `apply_async`, the same for all; the lowest priority by default.

        Returns:
            An iterator of `Answer`: ``item``, ``output`` and ``error``, "" if there is none.
            It raises `BackfillStopped` when an operator has stopped it.

        Raises:
            TypeError: There is no such option, or ``items`` is a text or a mapping.
            ValueError: The window has room for no row.
        """
        in_python = import_module("celery_batch.backfill.iterate")
        return in_python.answers(self, items, options, window=window, in_order=in_order)


def _send_group(app: Any, tasks: Any, producer: Any, apply: Any) -> Any:
    """Write the batch tasks of a group together, and send its others as in Celery."""
    return _client("publish.send_many").send_group(app, tasks, producer, apply)


@cache
def _client(name: str) -> Any:
    return import_module(f"celery_batch.client.{name}")
