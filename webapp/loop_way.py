"""The way of requests that share an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from celery import Task
from celery.exceptions import TimeoutError as CeleryTimeoutError

from celery_batch.client.aio import apply_async
from celery_batch.client.arrival import arrived_by
from celery_batch.client.listener import is_listening
from celery_batch.client.round_trip import Limits, RoundTrip
from celery_batch.client.together import room_for
from webapp.ways import begin_to_listen, revoke

__all__ = ["LoopWay"]

#: Inputs of one request up to which each is a call of its own, written together with those
#: of other requests; more are written by themselves, which costs less for each.
_FEW = 8


class LoopWay:
    """Every wait leaves the event loop to others."""

    holds_thread = False

    async def send(
        self, task: Task, values: Sequence[Any], options: Mapping[str, Any], deadline: float
    ) -> list[Any]:
        """See `Way`; calls of several requests share their writes; cancelled, none runs."""
        async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
            if not is_listening(task.app):
                await asyncio.to_thread(begin_to_listen, task.app)
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
                apply_async(task, (value,), None, {**options}, on_abandoned=revoke)
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

    async def ask(
        self,
        task: Task,
        value: Any,
        options: dict[str, Any],
        limits: Limits,
        told: Callable[[], object],
    ) -> Any:
        """See `Way`; before anything is heard in this process, it has no answer yet."""
        if is_listening(task.app):
            return await RoundTrip(limits, told).make(task, (value,), options, revoke)
        results = await self.send(task, [value], options, limits.sent_by)
        told()
        return results[0]

    async def until(self, results: Sequence[Any], deadline: float) -> bool:
        """See `Way`."""
        for result in results:
            if not await arrived_by(result, deadline):
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


def _revoke_all(sending: asyncio.Future[list[Any]]) -> None:
    """Likewise, of calls that have been sent by now."""
    if not sending.cancelled() and sending.exception() is None:
        for result in sending.result():
            revoke(result)
