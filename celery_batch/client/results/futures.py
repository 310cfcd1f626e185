"""
A result as a `concurrent.futures.Future`, and many results as they end.

The `Poller` polls the results that no listener receives.  It also decodes large values, so that
the thread that receives results does not.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Any

from celery.backends.base import BackendGetMetaError, DisabledBackend
from celery.backends.rpc import RPCBackend
from celery.exceptions import TimeoutError as CeleryTimeoutError
from celery.result import AsyncResult, EagerResult, ResultBase, assert_will_not_block
from celery.utils.functional import noop

from celery_batch.client.background import OnDemandThread, rest_after
from celery_batch.client.results.pending import PendingResult
from celery_batch.compat.tasks import raise_parent_error
from celery_batch.errors import ConfigurationError
from celery_batch.payloads.results import mentions_payload
from celery_batch.processes.per_process import PerProcess

__all__ = [
    "LONGEST_PAUSE",
    "Poll",
    "Poller",
    "as_completed",
    "future_of",
    "has_ended",
    "is_rpc",
    "keep_rpc_address",
    "notify_cancelled",
    "require_backend",
    "settle",
]

logger = logging.getLogger(__name__)

#: Bytes of stored values that are decoded at once in the thread that receives them.
SMALL = 4096

#: Asks once; returns whether it need not be called again.
Poll = Callable[[], bool]

#: Seconds before the first and most seconds between two rounds.
SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 0.5


class Poller(PerProcess):
    """Calls polls in rounds, with growing pauses, until each of them has ended."""

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self._new: deque[Poll] = deque()
        self._polls: list[Poll] = []
        self._pause = SHORTEST_PAUSE
        self._next_round = 0.0
        self._thread = OnDemandThread("celery-batch-futures", self._work)

    def add(self, poll: Poll) -> None:
        """Have a function called soon, and again until it returns True."""
        self._new.append(poll)
        self._thread.wake()

    def _work(self) -> float | None:
        new = [self._new.popleft() for _ in range(len(self._new))]
        if waiting := [poll for poll in new if not _is_done(poll)]:
            self._polls += waiting
            self._pause, self._next_round = SHORTEST_PAUSE, time.monotonic() + SHORTEST_PAUSE
        elif self._polls and time.monotonic() >= self._next_round:
            self._poll_all()
        return max(self._next_round - time.monotonic(), 0.0) if self._polls else None

    def _poll_all(self) -> None:
        began, before = time.monotonic(), len(self._polls)
        self._polls = [poll for poll in self._polls if not _is_done(poll)]
        now = time.monotonic()
        has_found = len(self._polls) < before
        self._pause = SHORTEST_PAUSE if has_found else min(1.5 * self._pause, LONGEST_PAUSE)
        self._next_round = now + max(self._pause, rest_after(now - began))


def _is_done(poll: Poll) -> bool:
    try:
        return poll()
    except Exception:
        logger.exception("A poll for a result has failed")
        return True


def is_rpc(backend: Any) -> bool:
    """Return whether results come to the thread that has sent the task, as with ``rpc://``."""
    return isinstance(backend, RPCBackend)


def require_backend(result: Any) -> None:
    """Raise ConfigurationError for a result that no backend will have."""
    if isinstance(result.backend, DisabledBackend):
        raise ConfigurationError(f"task {result.id} has no result backend: set result_backend")


def keep_rpc_address(backend: Any) -> None:
    """Fix this thread's reply address, so that another thread may poll: the first use sets it."""
    if is_rpc(backend):
        getattr(backend, "oid")  # noqa: B009 (it is cached once it was read)


def has_ended(result: Any) -> bool:
    """Return whether a result's task has ended, as far as its backend can be asked."""
    lost = getattr(result.backend, "connection_errors", ())  # not every backend knows its own
    try:
        return bool(result.ready())
    except (*lost, BackendGetMetaError):
        return False


def settle(future: Future[Any], value: Callable[[], tuple[Any] | None]) -> bool:
    """End a future with what `value` returns, in a tuple, or raises; return whether it is done."""
    if future.done():
        return True
    try:
        found = value()
    except BaseException as error:  # noqa: BLE001 (it is raised where the future is read)
        with suppress(InvalidStateError):  # it was cancelled meanwhile, or another thread was first
            future.set_exception(error)
        return True
    if found is None:
        return False
    with suppress(InvalidStateError):
        future.set_result(found[0])
    return True


def notify_cancelled(future: Future[Any]) -> None:
    """End the `wait` and `as_completed` of others for a future that was cancelled."""
    if future.cancelled():
        future.set_running_or_notify_cancel()


def future_of(result: Any) -> Future[Any]:
    """Return a future of a result, kept alive until its task has ended."""
    future: Future[Any] = Future()
    future.add_done_callback(notify_cancelled)
    if getattr(result, "ignored", False):
        future.set_result(None)
    elif isinstance(result, EagerResult):
        settle(future, lambda: (result.get(disable_sync_subtasks=False),))
    elif (pending := getattr(result, "notified", None)) is None:
        _poll(future, result)
    else:
        _receive(future, result, pending)
    return future


def _receive(future: Future[Any], result: Any, pending: PendingResult) -> None:
    """End a future when its result is received."""

    def received() -> None:
        value = pending.value
        # Large values, and what is stored beside them, are not for the thread that receives all.
        is_small = value and len(value) <= SMALL and not mentions_payload(value)
        if not (is_small and settle(future, partial(_value, result, result._open))):  # noqa: SLF001 (our own)
            _poll(future, result)

    def abandon(_future: Future[Any]) -> None:
        if future.cancelled():
            pending.registry.remove_callback_later(pending, received)

    if not pending.registry.add_callback(pending, received):
        received()
        return
    future.add_done_callback(abandon)
    if result.parent:  # if one before it fails, this task is never sent, and has no result
        Poller.of(result.app).add(partial(settle, future, partial(_value, result, noop)))


def _poll(future: Future[Any], result: Any) -> None:
    """End a future when its result is found where it is stored."""
    require_backend(result)
    keep_rpc_address(result.backend)
    value = partial(_value, result, lambda: has_ended(result) or None)
    Poller.of(result.app).add(partial(settle, future, value))


def _value(result: Any, find: Callable[[], Any]) -> tuple[Any] | None:
    if find() is None:
        if result.parent:
            raise_parent_error(result)
        return None
    return (result.maybe_throw(),)


class as_completed:  # noqa: N801 (called like `asyncio.as_completed`)
    """
    Yields results in the order in which their tasks end, with ``for`` and with ``async for``.

    Results whose tasks have ended before come first. A task that has failed has ended, too:
    `get` of its result raises the error.

    Args:
        results: `BatchResult` objects, and ordinary `AsyncResult` objects of Celery.
        timeout: Most seconds for all of them; None for as long as it takes. Then Celery's
            `TimeoutError` is raised.

    Raises:
        TypeError: One of them is no result.
    """

    def __init__(self, results: Iterable[Any], timeout: float | None = None) -> None:
        if isinstance(results, AsyncResult):
            raise TypeError("as_completed() takes a list of results; for one write [result]")
        self._results = list(results)
        for each in self._results:
            if not isinstance(each, ResultBase):
                raise TypeError(f"as_completed() takes results of calls, got {each!r:.60}")
        self._timeout = timeout

    def __iter__(self) -> Iterator[Any]:
        assert_will_not_block()
        futures = {future_of(result): result for result in self._results}
        try:
            for future in concurrent.futures.as_completed(futures, self._timeout):
                yield futures[future]
        except TimeoutError:
            raise CeleryTimeoutError("The operation timed out.") from None
        finally:
            _cancel(futures)

    async def __aiter__(self) -> AsyncIterator[Any]:
        assert_will_not_block()
        loop = asyncio.get_running_loop()
        end = None if self._timeout is None else loop.time() + self._timeout
        ended: asyncio.Queue[Any] = asyncio.Queue()
        futures = {future_of(result): result for result in self._results}

        def note(future: Future[Any]) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(ended.put_nowait, futures[future])

        try:
            for future in futures:
                future.add_done_callback(note)
            for _ in futures:
                try:
                    async with asyncio.timeout_at(end):
                        result = await ended.get()
                except TimeoutError:
                    raise CeleryTimeoutError("The operation timed out.") from None
                yield result
        finally:
            _cancel(futures)


def _cancel(futures: Iterable[Future[Any]]) -> None:
    for future in futures:
        future.cancel()
