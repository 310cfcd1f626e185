"""Iterates over the states of a task."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Self

from celery import states
from celery.exceptions import TimeoutError as CeleryTimeoutError
from celery.result import EagerResult, assert_will_not_block

from celery_batch.client.results.futures import Poller, keep_rpc_address, require_backend
from celery_batch.client.results.pending import NOT_STORED, TOO_LARGE
from celery_batch.client.results.waiting import block, sleep
from celery_batch.compat.tasks import raise_parent_error

__all__ = ["StateIterator"]


class StateIterator:
    """Yields a task's states as they come, to one thread or coroutine."""

    # No generator: a step that has timed out or was cancelled may be tried again.  Between steps
    # nothing is kept anywhere else, so an iterator may be dropped at any time.

    def __init__(self, result: Any, timeout: float | None) -> None:
        self._result = result
        self._timeout = timeout
        self._expires: float | None = getattr(result.backend, "expires", None) or None
        #: When a new state was found last.
        self._changed_at = time.monotonic()
        #: What of the pending result's `latest` was looked at, and the state that came last.
        self._seen: bytes | None = None
        self._last: str = states.PENDING
        #: What the poller has found, where no listener receives the states.
        self._polled: str | Exception | None = None
        self._is_over: bool = result.ignored  # nothing will be stored

    def __iter__(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        return self

    def __next__(self) -> str:
        """Wait for the next state; one that comes too late may be waited for again."""
        end = self._end_of_step()
        while (state := self._next_known()) is None:
            left = self._seconds_left(end)
            if self._is_over:
                raise StopIteration
            block(self._subscribe, left)
        return state

    async def __anext__(self) -> str:
        """Wait for the next state as `__next__`, without blocking the event loop."""
        end = self._end_of_step()
        while (state := self._next_known()) is None:
            left = self._seconds_left(end)
            if self._is_over:
                raise StopAsyncIteration
            await sleep(self._subscribe, left)
        return state

    def _end_of_step(self) -> float | None:
        assert_will_not_block()
        return None if self._timeout is None else time.monotonic() + self._timeout

    def _seconds_left(self, end: float | None) -> float | None:
        """Return the seconds until the step, or the stored result, ends."""
        now, left = time.monotonic(), []
        if self._expires is not None:
            left.append(self._changed_at + self._expires - now)
            self._is_over = self._is_over or left[0] <= 0
        if end is not None:
            if end <= now and not self._is_over:
                raise CeleryTimeoutError("The operation timed out.")
            left.append(end - now)
        return max(min(left), 0.0) if left else None

    def _next_known(self) -> str | None:
        """Return the next state if it is known already."""
        if self._is_over:
            return None
        if isinstance(self._result, EagerResult):
            self._is_over = True
            return str(self._result.state)
        polled, self._polled = self._polled, None
        if isinstance(polled, Exception):
            raise polled
        if polled is None and not self._is_polled():
            polled = self._received()
        return None if polled is None else self._advance(polled)

    def _received(self) -> str | None:
        """Return the next state that was received, if there is one."""
        pending = self._result.pending_result
        latest = pending.latest
        if latest is not None and latest != self._seen:
            self._seen = latest
            with suppress(Exception):  # the caller who wants the result meets the error
                return states.PENDING if latest == NOT_STORED else self._decoded_state(latest)
        if pending.value is None:
            return None
        if self._result.has_payload:
            return self._decoded_state(pending.value)
        return str(self._result._open()["status"])  # noqa: SLF001 (our own; `_is_polled` has opened it)

    def _decoded_state(self, value: bytes) -> str:
        """Return the state in a stored value, without what is stored beside that."""
        return str(self._result.backend.decode(value)["status"])

    def _advance(self, state: str) -> str | None:
        if state == self._last:
            return None
        self._changed_at, self._last = time.monotonic(), state
        if state == states.PENDING:  # it was stored, and was deleted
            self._is_over = True
            return None
        self._is_over = state in states.READY_STATES
        return state

    def _is_polled(self) -> bool:
        """Return whether the backend has to be asked, because no listener receives the states."""
        result = self._result
        pending = None if result.parent else result.notified
        if pending is None or pending.value == TOO_LARGE:
            return True
        if pending.value is None:
            return False
        return not result.has_payload and result._open() is None  # noqa: SLF001 (our own; no end)

    def _subscribe(self, callback: Callable[[], object]) -> Callable[[], object]:
        """Have a function called when there may be a new state; return what takes that back."""
        if self._is_polled():
            wanted = [True]
            require_backend(self._result)
            keep_rpc_address(self._result.backend)
            Poller.of(self._result.app).add(partial(self._poll, wanted, callback))
            return wanted.clear
        pending = self._result.pending_result
        if not pending.registry.add_state_callback(pending, callback, self._seen):
            callback()
        return partial(pending.registry.remove_callback_later, pending, callback)

    def _poll(self, wanted: list[bool], callback: Callable[[], object]) -> bool:
        """Ask the backend; return whether that has come to something, or is wanted no more."""
        result = self._result
        polled: str | Exception | None = None
        try:
            with suppress(*getattr(result.backend, "connection_errors", ())):
                polled = str(result.state)
                if result.parent:
                    raise_parent_error(result)
        except Exception as error:  # noqa: BLE001 (it is raised by the step)
            polled = error
        if wanted and polled not in (None, self._last):
            self._polled = polled
            callback()
            return True
        return not wanted
