"""
Calls from coroutines, written together and beside the event loop.

Those that come while a write is under way leave with the next one.  Each loop has a thread of
its own for that: in asyncio's executor a call would wait for whatever else blocks there.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from kombu.exceptions import OperationalError

from celery_batch.client.backpressure import Admission, already_admitted
from celery_batch.client.publish.buffer import BulkWrite, call_in_bulk
from celery_batch.client.publish.publisher import Publisher
from celery_batch.client.publish.send_many import SeriesSender, apply_many
from celery_batch.client.results.waiting import LoopWaker
from celery_batch.compat.deadline import current_deadline
from celery_batch.errors import copied
from celery_batch.payloads.store import StoreError

__all__ = ["LoopCall", "aapply_many", "apply_and_wait", "apply_async"]

logger = logging.getLogger(__name__)

#: Calls in one write from which on what they have in common is looked up once.  A single call is
#: made as `apply_async` makes it, which fails at once if the result backend is away.
_SEVERAL = 4

#: Seconds: a call that fails with less time left may have failed for want of it.
_SHORT = 1.0


class LoopCall(NamedTuple):
    """A call of a coroutine."""

    task: Any
    args: Any
    kwargs: Any
    options: dict[str, Any]
    context: Context  # of the coroutine
    admission: Admission  # closed when the broker has the message
    #: If it is cancelled, or done otherwise, before the call leaves, that is not sent.
    future: asyncio.Future[Any]
    #: Called on the loop, with the future and the result, when the broker has the message.
    on_sent: Callable[[asyncio.Future[Any], Any], object]
    #: Called with the result of a call that was sent although the future is done.
    on_abandoned: Callable[[Any], object] | None

    def report(self, outcome: Any) -> None:
        """Say on the loop what has come of sending it: a result or an error."""
        if isinstance(outcome, BaseException):
            if not self.future.done():
                self.future.set_exception(copied(outcome))  # other calls may have it, too
        elif not self.future.done():
            self.on_sent(self.future, outcome)
        elif self.on_abandoned is not None:
            self.on_abandoned(outcome)

    def send(self, bulk: BulkWrite, series: SeriesSender | None) -> Any:
        """Make the call, and return its result."""
        result = None
        if series is not None and _are_own(self.options):
            result = series.send(self.task, self.args, self.kwargs, self.options)
        if result is None:
            apply = partial(self.task.apply_async, self.args, self.kwargs, **self.options)
            result = call_in_bulk(bulk, self.task, apply)
        return result


def _are_own(options: dict[str, Any]) -> bool:
    """Return whether a series leaves all options to its calls: a deadline, and a request's id."""
    return all(
        value is not None
        and (name == "expires" or (name == "headers" and type(value) is dict and value))
        for name, value in options.items()
    )


class _LoopSender:
    """Sends the calls of one loop's coroutines; `executor` has the loop's one writing thread."""

    def __init__(self) -> None:
        self._calls: list[LoopCall] = []
        self._is_writing = False
        #: Its thread ends with the loop.
        self.executor = ThreadPoolExecutor(1, thread_name_prefix="celery-batch-send")

    @staticmethod
    def of(loop: asyncio.AbstractEventLoop) -> _LoopSender:
        """Return a loop's sender."""
        return _senders.get(loop) or _senders.setdefault(loop, _LoopSender())

    def add(self, loop: asyncio.AbstractEventLoop, call: LoopCall) -> None:
        """Have a call leave once all coroutines that are ready have had their turn."""
        self._calls.append(call)
        if not self._is_writing:
            self._is_writing = True
            loop.call_soon(self._start_write, loop)

    def _start_write(self, loop: asyncio.AbstractEventLoop) -> None:
        calls, self._calls = [call for call in self._calls if not call.future.done()], []
        self._is_writing = bool(calls)
        if not calls:
            return
        queued = [calls]
        try:
            self.executor.submit(self._write, loop, queued)
        except RuntimeError:  # the interpreter is ending, or there are too many threads
            queued.clear()  # the executor keeps them, and would write them with the next ones
            self._written(loop, calls, _send(calls))

    def _write(self, loop: asyncio.AbstractEventLoop, queued: list[list[LoopCall]]) -> None:
        """Write calls, in the thread for it, and have the loop report what has come of that."""
        if not queued:
            return
        calls = queued.pop()
        try:
            outcomes = _send(calls)
        except BaseException as error:  # noqa: BLE001 (it is raised where the calls were made)
            outcomes = [error] * len(calls)
        try:
            loop.call_soon_threadsafe(self._written, loop, calls, outcomes)
        except RuntimeError:  # the loop is closed; what was sent may still be revoked
            _report(calls, outcomes)

    def _written(
        self, loop: asyncio.AbstractEventLoop, calls: list[LoopCall], outcomes: list[Any]
    ) -> None:
        try:
            _report(calls, outcomes)
        finally:
            self._start_write(loop)


#: Each loop's own, which is used in its thread alone.
_senders: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopSender] = WeakKeyDictionary()


def send_soon(
    call: tuple[Any, Any, Any, dict[str, Any]],
    future: asyncio.Future[Any],
    on_sent: Callable[[asyncio.Future[Any], Any], object],
    on_abandoned: Callable[[Any], object] | None,
) -> Admission:
    """Have a call leave once all ready coroutines had their turn; return the context to wait in."""
    task, args, kwargs, options = call
    limiter = Publisher.of(task.app).limiter()
    context = _context(task, is_admitted=limiter.limit(task) is not None)
    admission = limiter.admit(task, options, call=(args, kwargs))
    loop = future.get_loop()
    loop_call = LoopCall(*call, context, admission, future, on_sent, on_abandoned)
    _LoopSender.of(loop).add(loop, loop_call)
    return admission


def _context(task: Any, *, is_admitted: bool) -> Context:
    if not is_admitted:
        return copy_context()
    with already_admitted((task.name,)):
        return copy_context()


def _send(calls: list[LoopCall]) -> list[Any]:
    """Send calls in one write, each in its own context; return results and errors."""
    bulk, outcomes = BulkWrite(), list[Any]()
    #: What calls of a task met after all their tries, and until when these could go on.
    lost: dict[Any, tuple[OperationalError, float]] = {}
    series = SeriesSender(bulk) if len(calls) >= _SEVERAL else None
    for call in calls:
        if lost and call.task in lost and _are_own(call.options):
            error, tried_until = lost[call.task]
            if call.context.run(current_deadline) <= max(tried_until, time.monotonic()):
                outcomes.append(error)
                continue
        try:
            outcomes.append(call.context.run(call.send, bulk, series))
        except OperationalError as error:
            outcomes.append(error)
            if _are_own(call.options) and not isinstance(error.__cause__, StoreError):
                lost[call.task] = error, call.context.run(_tried_until)
        except Exception as error:  # noqa: BLE001 (it is raised where the call was made)
            outcomes.append(error)
    with closing(bulk), suppress(Exception):  # the same
        bulk.flush()
    for call in calls:  # at once: the loop may take long to report
        call.admission.close()
    unsent = {result.id: bulk.error_of(result) for result in bulk.unsent}
    return [unsent.get(getattr(each, "id", None), each) for each in outcomes]


def _tried_until() -> float:
    """Return the deadline of a call that has just failed if its tries may have ended for that."""
    deadline = current_deadline()
    return deadline if deadline - time.monotonic() < _SHORT else math.inf


def _report(calls: list[LoopCall], outcomes: list[Any]) -> None:
    for call, outcome in zip(calls, outcomes, strict=True):
        try:
            call.report(outcome)
        except Exception as error:  # one call's own, and not the others'
            if call.future.done():
                logger.exception("A call of %s was sent, but not reported", call.task.name)
            else:
                call.future.set_exception(error)


async def apply_async(
    task: Any,
    args: Any,
    kwargs: Any,
    options: dict[str, Any],
    *,
    on_abandoned: Callable[[Any], object] | None = None,  # gets the result if it is too late
) -> Any:
    """Send a call, unless cancelled before, and return its result when the broker has it."""
    await Publisher.of(task.app).limiter().await_depth(task, options)
    options = _with_parent(task.app, options)
    future = asyncio.get_running_loop().create_future()
    with send_soon((task, args, kwargs, options), future, asyncio.Future.set_result, on_abandoned):
        try:
            result = await future
        except asyncio.CancelledError:
            # It may come in the same pass of the loop as the result.
            if on_abandoned and future.done() and not (future.cancelled() or future.exception()):
                on_abandoned(future.result())
            raise
    _add_to_parent(task.app, [result], options)
    return result


async def aapply_many(task: Any, rows: Iterable[Any], options: dict[str, Any]) -> list[Any]:
    """Send one call for each row, beside the event loop; see `apply_many`."""
    loop = asyncio.get_running_loop()
    send = partial(apply_many, task, list(rows), _with_parent(task.app, options))
    # Whether this is a task of a worker is known to this thread alone.
    context = _context(task, is_admitted=Publisher.of(task.app).limiter().is_exempt())
    try:
        sending = loop.run_in_executor(_LoopSender.of(loop).executor, context.run, send)
    except RuntimeError:  # the interpreter is ending, or there are too many threads
        results = send()
    else:
        results = await sending
    _add_to_parent(task.app, results, options)
    return results


def _with_parent(app: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Return options that name the task that calls, which is known to this thread alone."""
    parent = app.current_worker_task
    if not parent:
        return options
    request = parent.request
    options = {"root_id": request.root_id or request.id, "parent_id": request.id, **options}
    if app.conf.task_inherit_parent_priority and request.delivery_info:
        options.setdefault("priority", request.delivery_info.get("priority"))
    return options


def _add_to_parent(app: Any, results: Iterable[Any], options: dict[str, Any]) -> None:
    parent = app.current_worker_task
    if parent and options.get("add_to_parent", True):
        for result in results:
            parent.add_trail(result)


async def apply_and_wait(
    task: Any,
    args: Any,
    options: dict[str, Any],
    deadline: float,
    on_abandoned: Callable[[Any], object],  # gets the result if it is too late
) -> Any:
    """Send a call, in no task, and return its result at the task's end or at the deadline."""
    # The coroutine is woken once, not when the call was sent and again at its end, by one timer.
    await Publisher.of(task.app).limiter().await_depth(task, options)
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    waker = LoopWaker.of_running_loop()
    future = waker.loop.create_future()
    complete = partial(waker.complete, future)
    result: Any = None

    def sent(_future: asyncio.Future[Any], sent_result: Any) -> None:
        nonlocal result
        result = sent_result
        pending = None if result.parent else result.notified
        if pending is None or not pending.registry.add_callback(pending, complete):
            future.set_result(None)  # the caller has to poll

    def time_out() -> None:
        if not future.done():
            future.set_exception(TimeoutError()) if result is None else future.set_result(None)

    timer = waker.loop.call_later(left, time_out)
    try:
        with send_soon((task, args, None, options), future, sent, on_abandoned):
            await future
    except asyncio.CancelledError:
        if result is not None:
            on_abandoned(result)
        raise
    finally:
        timer.cancel()
        if result is not None:
            result.pending_result.registry.remove_callback_later(result.pending_result, complete)
    return result
