"""Iterates over the states of a result."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Self

from celery import states
from celery.exceptions import TimeoutError as CeleryTimeoutError
from celery.result import assert_will_not_block

from celery_batch.client.results.listener import TIMEOUT, is_listening, listener_for
from celery_batch.client.results.poller import SELDOM, SOON
from celery_batch.client.results.waiting import PARENTS, PIECE, LoopWaker, begin_listening, off_loop

__all__ = ["States"]


class States:
    """
    Yields a task's states as they come, to one thread or coroutine.

    Nothing is left of it between two of them, so it may be dropped at any time.

    Args:
        result: A `BatchResult`.
        timeout: Most seconds to wait for each; None for as long as it takes.
    """

    def __init__(self, result: Any, timeout: float | None) -> None:
        self._result = result
        self._timeout = timeout
        self._expires: float | None = result.backend.expires or None
        #: When something was last heard of the task, on the monotonic clock.
        self._received = time.monotonic()
        #: What of the reply's latest has been looked at, and the state that was yielded last.
        self._seen: bytes | None = None
        self._last: str = states.PENDING
        self._is_over: bool = result._ignored  # noqa: SLF001 (nothing will be stored)

    def __iter__(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        return self

    def __next__(self) -> str:
        """
        Wait for the next state.

        Raises:
            TimeoutError: Celery's; it did not come in time, and may be waited for again.
        """
        end, pause = self._begin(), SOON
        result = self._result
        while not self._is_over:
            listener = None if result.is_elsewhere else listener_for(result.app, _until(end))
            state = self._look() if listener is None else self._news()
            if state is not None:
                return state
            left = self._left(end)
            if self._is_over:
                break
            if listener is None or result.reply.value is not None:
                time.sleep(min(pause, left))
                pause = min(1.5 * pause, SELDOM)
            else:
                listener.check()
                self._wait(min(left, PIECE))
            if result.parent:
                result._maybe_reraise_parent_error()  # noqa: SLF001
        raise StopIteration

    async def __anext__(self) -> str:
        """
        Wait for the next state, leaving the event loop to others.

        Raises:
            TimeoutError: Celery's; it did not come in time, and may be waited for again.
        """
        end, pause = self._begin(), SOON
        result = self._result
        if not (self._is_over or result.is_elsewhere or is_listening(result.app)):
            await begin_listening(result.app)
        while not self._is_over:
            is_received = is_listening(result.app) and not result.is_elsewhere
            if is_received and result.own_reply().value != b"":
                state = self._news()
            else:
                state = await off_loop(result, self._look)
            if state is not None:
                return state
            left = self._left(end)
            if self._is_over:
                break
            if not is_received or result.reply.value is not None:
                await asyncio.sleep(min(pause, left))
                pause = min(1.5 * pause, SELDOM)
            else:
                await self._wait_in_loop(min(left, PARENTS) if result.parent else left)
            if result.parent:
                await off_loop(result, result._maybe_reraise_parent_error)  # noqa: SLF001
        raise StopAsyncIteration

    def _begin(self) -> float | None:
        assert_will_not_block()
        return None if self._timeout is None else time.monotonic() + self._timeout

    def _left(self, end: float | None) -> float:
        """Return the seconds to the end of our patience, or of the result's life."""
        now = time.monotonic()
        left = float("inf")
        if self._expires is not None:
            left = self._received + self._expires - now
            self._is_over = self._is_over or left <= 0
        if end is not None:
            if end <= now and not self._is_over:
                raise CeleryTimeoutError("The operation timed out.")
            left = min(left, end - now)
        return max(left, 0.0)

    def _news(self) -> str | None:
        """Return the next state that was heard of, if there is one."""
        reply = self._result.own_reply()
        latest = reply.latest
        if latest is not None and latest != self._seen:
            self._seen = latest
            state = self._advance(self._state_of(latest))
            if state is not None:
                return state
        return self._look() if reply.value is not None else None

    def _look(self) -> str | None:
        """Return the next state, as far as the backend can be asked."""
        lost = getattr(self._result.backend, "connection_errors", ())
        with suppress(*lost):
            return self._advance(str(self._result.state))
        return None

    def _state_of(self, stored: bytes) -> str:
        if not stored:
            return str(states.PENDING)
        with suppress(Exception):  # what cannot be read is for those to meet who want the result
            return str(self._result.backend.decode(stored)["status"])
        return self._last

    def _advance(self, state: str) -> str | None:
        if state == self._last:
            return None
        self._received, self._last = time.monotonic(), state
        if state == states.PENDING:  # it was there, and has gone
            self._is_over = True
            return None
        self._is_over = state in states.READY_STATES
        return state

    def _wait(self, seconds: float) -> None:
        rung: SimpleQueue[None] = SimpleQueue()
        watcher = partial(rung.put, None)
        reply = self._result.own_reply()
        if reply.pending.follow(reply, watcher, self._seen):
            try:
                with suppress(Empty):
                    rung.get(timeout=seconds)
            finally:
                reply.pending.leave(reply, watcher)

    async def _wait_in_loop(self, seconds: float) -> None:
        waker = LoopWaker.here()
        future = waker.future()
        watcher = partial(waker.ring, future)
        reply = self._result.own_reply()
        if reply.pending.follow(reply, watcher, self._seen):
            try:
                await asyncio.wait((future,), timeout=None if seconds == float("inf") else seconds)
            finally:
                reply.pending.leave_soon(reply, watcher)


def _until(end: float | None) -> float:
    """Return how long a listener may be waited for, by somebody who waits until then."""
    return TIMEOUT if end is None else min(max(end - time.monotonic(), 0.0), TIMEOUT)
