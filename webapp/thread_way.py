"""The way of a request that has a thread, or a greenlet, for itself."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from celery import Task
from celery.exceptions import TimeoutError as CeleryTimeoutError

from celery_batch.client.listener import is_listening
from celery_batch.client.round_trip import Limits
from webapp.errors import ClientGone
from webapp.hangups import hangups
from webapp.ways import begin_to_listen

__all__ = ["ThreadWay"]

#: Seconds after which a thread that waits looks whether its client has gone.  Under load many
#: answers take a tenth, and to watch for each of them costs a tenth of all the rest.
_WATCH_AFTER = 0.25


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
            begin_to_listen(task.app)
        if len(values) == 1:
            return [task.apply_async((values[0],), **options)]
        rows = [((value,), None) for value in values]
        return task.apply_many(rows, **options)  # type: ignore[no-any-return]

    async def ask(
        self,
        task: Task,
        value: Any,
        options: dict[str, Any],
        limits: Limits,
        told: Callable[[], object],
    ) -> Any:
        """See `Way`; it has no answer yet."""
        results = await self.send(task, [value], options, limits.sent_by)
        told()
        return results[0]

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
