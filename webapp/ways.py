"""The two ways of a web process to send and wait: a thread for each request, or an event loop."""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

from celery import Celery, Task
from celery.exceptions import TimeoutError as CeleryTimeoutError

from celery_batch.client.aio import apply_async
from celery_batch.client.arrival import arrived
from celery_batch.client.listener import is_listening, listener_for
from celery_batch.client.revokes import revoke_soon
from celery_batch.client.together import room_for
from webapp.errors import ClientGone
from webapp.hangups import hangups

__all__ = ["LoopWay", "ThreadWay", "Way"]

#: Inputs of one request up to which each is a call of its own, written together with those
#: of other requests; more are written by themselves, which costs less for each.
_FEW = 8

#: Seconds after which a thread that waits looks whether its client has gone.  Under load many
#: answers take a tenth, and to watch for each of them costs a tenth of all the rest.
_WATCH_AFTER = 0.25


class Way(Protocol):
    """
    What routes do with the servers behind them; awaited, whether it blocks or not.

    Args:
        holds_thread: Whether a request has a thread, or a greenlet, for itself until it ends.
    """

    holds_thread: bool

    async def send(
        self, task: Task, values: Sequence[Any], options: Mapping[str, Any], deadline: float
    ) -> list[Any]:
        """
        Send one call for each value, in one write, and return their results in order.

        Args:
            task: A batch task.
            values: The only argument of each call.
            options: As for `apply_async`.
            deadline: When to give up, by the monotonic clock; a thread notices it between
                two tries only.

        Raises:
            TimeoutError: The broker takes too long.
            QueueFull: Too many wait already; none was sent.
            OperationalError: It cannot be reached.
            ConnectionError: The results would not be heard of.
        """

    async def until(self, results: Sequence[Any], deadline: float) -> bool:
        """
        Wait for results; say whether all of them have come.

        Args:
            results: Of `send`.
            deadline: Until when, by the monotonic clock.

        Raises:
            ClientGone: Nobody waits for the answer any more.
        """

    async def done(self, future: Future[Any], deadline: float) -> Any:
        """
        Return what a future comes to that others wait for, too.

        Args:
            future: One that runs, so that giving up here cancels it for nobody.
            deadline: Until when, by the monotonic clock.

        Raises:
            TimeoutError: It is not done by then.
            Exception: What it has failed with.
        """

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """
        Call a function that may block, and return what it returns.

        Args:
            function: The function.
            args: Its arguments.
        """

    async def next_of(self, states: Any) -> str | None:
        """
        Return the next state of a task; None when there will be no more.

        Args:
            states: Of a `BatchResult`, with a timeout.

        Raises:
            TimeoutError: None has come in that time; ask again.
        """

    async def rest(self, seconds: float) -> None:
        """
        Do nothing for a while.

        Args:
            seconds: For how long.
        """


class ThreadWay:
    """
    Every wait blocks its thread, or its greenlet.

    Args:
        connection: The descriptor of the client's connection, if it is known.
    """

    holds_thread = True

    def __init__(self, connection: int | None = None) -> None:
        self._connection = connection

    async def send(
        self, task: Task, values: Sequence[Any], options: Mapping[str, Any], deadline: float
    ) -> list[Any]:
        """See `Way`; calls of several threads share their writes."""
        if time.monotonic() >= deadline:
            raise TimeoutError
        if not is_listening(task.app):
            _listen(task.app)
        if len(values) == 1:
            return [task.apply_async((values[0],), **options)]
        rows = [((value,), None) for value in values]
        return task.apply_many(rows, **options)  # type: ignore[no-any-return]

    async def until(self, results: Sequence[Any], deadline: float) -> bool:
        """See `Way`; most answers come too soon for it to be worth watching the client."""
        told: _Told = queue.SimpleQueue()
        ring = partial(told.put, None)
        replies = [result.own_reply() for result in results]
        waited = [reply for reply in replies if reply.inbox.watch(reply, ring)]
        missing = len(waited)
        try:
            if self._connection is not None:
                soon = min(time.monotonic() + _WATCH_AFTER, deadline)
                missing = _missing(told, missing, soon)
            if missing and self._connection is not None:
                with hangups().watch(self._connection, partial(told.put, ClientGone)):
                    missing = _missing(told, missing, deadline)
            missing = _missing(told, missing, deadline)
            return not missing
        finally:
            if missing:
                for reply in waited:
                    reply.inbox.leave(reply, ring)

    async def done(self, future: Future[Any], deadline: float) -> Any:
        """See `Way`."""
        return future.result(max(0.0, deadline - time.monotonic()))

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """See `Way`."""
        return function(*args)

    async def next_of(self, states: Any) -> str | None:
        """See `Way`."""
        try:
            return next(states, None)
        except CeleryTimeoutError:
            raise TimeoutError from None

    async def rest(self, seconds: float) -> None:
        """See `Way`."""
        time.sleep(seconds)  # noqa: ASYNC251 (it is the point of this way)


#: What a thread is told while it waits: nothing with an answer, else why it waits in vain.
_Told = queue.SimpleQueue[type[ClientGone] | None]


def _missing(told: _Told, count: int, deadline: float) -> int:
    """Return how many of so many answers have not come in time."""
    try:
        while count:
            in_vain = told.get(timeout=max(0.0, deadline - time.monotonic()))
            if in_vain is not None:
                raise in_vain("the client has gone")
            count -= 1
    except queue.Empty:
        pass
    return count


class LoopWay:
    """Every wait leaves the event loop to others."""

    holds_thread = False

    async def send(
        self, task: Task, values: Sequence[Any], options: Mapping[str, Any], deadline: float
    ) -> list[Any]:
        """See `Way`; calls of several requests share their writes; cancelled, none runs."""
        async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
            if not is_listening(task.app):
                await asyncio.to_thread(_listen, task.app)
            if len(values) == 1 and not isinstance(values[0], bytes):
                return await self._send(task, values, options)  # which asks for room at once
            # Here and not where they are written, which may have to wait for other writes.
            with room_for(task, options, len(values)):
                return await self._send(task, values, options)

    async def _send(
        self, task: Task, values: Sequence[Any], options: Mapping[str, Any]
    ) -> list[Any]:
        are_large = isinstance(values[0], bytes)  # megabytes, maybe
        if len(values) <= _FEW and not are_large:
            calls = [
                apply_async(task, (value,), None, {**options}, on_abandoned=_revoke)
                for value in values
            ]
            return [await calls[0]] if len(calls) == 1 else await asyncio.gather(*calls)
        rows = [((value,), None) for value in values]
        sending = asyncio.ensure_future(asyncio.to_thread(task.apply_many, rows, **options))
        try:
            return await asyncio.shield(sending)
        except asyncio.CancelledError:
            sending.add_done_callback(_revoke_all)
            raise

    async def until(self, results: Sequence[Any], deadline: float) -> bool:
        """See `Way`."""
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                for result in results:
                    await arrived(result)
        except TimeoutError:
            return False
        return True

    async def done(self, future: Future[Any], deadline: float) -> Any:
        """See `Way`."""
        if future.done():
            return future.result()
        async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
            return await asyncio.wrap_future(future)

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """See `Way`."""
        return await asyncio.to_thread(function, *args)

    async def next_of(self, states: Any) -> str | None:
        """See `Way`."""
        try:
            return await anext(states, None)
        except CeleryTimeoutError:
            raise TimeoutError from None

    async def rest(self, seconds: float) -> None:
        """See `Way`."""
        await asyncio.sleep(seconds)


def _revoke(result: Any) -> None:
    """Have a call not run that nobody waits for any more."""
    revoke_soon(result.app, [result.id])


def _revoke_all(sending: asyncio.Future[list[Any]]) -> None:
    """Likewise, of calls that have been sent by now."""
    if not sending.cancelled() and sending.exception() is None:
        for result in sending.result():
            _revoke(result)


def _listen(app: Celery) -> None:
    """
    Begin to hear of results, before anything is sent.

    Else each would be waited for in Celery's own way, which takes long to find out that
    Redis is away, and would do so for each.
    """
    if listener_for(app) is None:
        raise ConnectionError("the result store does not let this process listen")
