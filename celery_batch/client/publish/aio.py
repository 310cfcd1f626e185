"""Calls from coroutines, written together and beside the event loop.

Those that come while a write is on its way leave with the next one.  Each loop has a thread
of its own for that: in asyncio's executor a call would wait for whatever else blocks there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from celery_batch.client.backpressure import Passage, admitted, items_of
from celery_batch.client.publish.buffer import Gathering, gathered_by
from celery_batch.client.publish.fast_path import Series
from celery_batch.client.publish.publisher import Publisher
from celery_batch.client.results.listener import is_listening
from celery_batch.client.results.result import copied
from celery_batch.client.results.waiting import LoopWaker

__all__ = [
    "Alike",
    "LoopCall",
    "apply_and_wait",
    "apply_async",
    "first_look",
    "send_soon",
]


#: What each call of a web server's may have of its own: a deadline, and the name of its request.
_OWN = ("expires", "headers")


class Alike:
    """
    Makes calls one after another, and looks up once what those of one kind have in common.

    Nothing is kept from one write to the next: settings and listeners may change any time.

    Args:
        gathering: Keeps their messages until they are written.
    """

    def __init__(self, gathering: Gathering) -> None:
        self._gathering = gathering
        self._kind: Any = None
        self._series: Series | None = None

    def send(self, task: Any, args: Any, kwargs: Any, options: dict[str, Any]) -> Any:
        """
        Make a call, and return its result; None if it has to go another way.

        Args:
            task: The task that is called; its calls have been counted in already.
            args: Positional arguments, or None.
            kwargs: Keyword arguments, or None.
            options: As `apply_async` takes them.

        Raises:
            TypeError: The arguments do not fit the task.
        """
        own = {name: options[name] for name in _OWN if options.get(name) is not None}
        if len(own) != len(options):
            return None
        headers = own.get("headers")
        if headers is not None and (type(headers) is not dict or not headers):
            return None
        kind = task, *own
        if kind != self._kind:
            self._kind = kind
            self._series = Publisher.of(task.app).series(task, options, own)
        return self._series and self._series.send(args, kwargs, self._gathering, own)


logger = logging.getLogger(__name__)


#: Calls in one write from which on it pays to look up what they have in common.
_SEVERAL = 4


class LoopCall(NamedTuple):
    """
    A call of a coroutine.

    Args:
        task: The task that is called.
        args: Positional arguments, or None.
        kwargs: Keyword arguments, or None.
        options: As for `apply_async`.
        context: Of the coroutine.
        passage: Closed when the broker has it.
        future: Cancelled, or done otherwise, before it leaves, it is not sent.
        sent: Told on the loop, with the future and the result, that the broker has it.
        on_abandoned: Called with the result of a call that was sent although the future is done.
    """

    task: Any
    args: Any
    kwargs: Any
    options: dict[str, Any]
    context: Context
    passage: Passage
    future: asyncio.Future[Any]
    sent: Callable[[asyncio.Future[Any], Any], object]
    on_abandoned: Callable[[Any], object] | None

    def tell(self, outcome: Any) -> None:
        """Say what has come of sending it, to whoever waits for that or has gone."""
        if isinstance(outcome, BaseException):
            if not self.future.done():
                self.future.set_exception(copied(outcome))  # its neighbours may have it, too
        elif not self.future.done():
            self.sent(self.future, outcome)
        elif self.on_abandoned is not None:
            self.on_abandoned(outcome)

    def send(self, gathering: Gathering, alike: Alike | None) -> Any:
        """Make the call, and return its result."""
        result = alike and alike.send(self.task, self.args, self.kwargs, self.options)
        if result is None:
            apply = partial(self.task.apply_async, self.args, self.kwargs, **self.options)
            result = gathered_by(gathering, self.task, apply)
        return result


class _Outgoing:
    """The calls of one loop that have not left yet."""

    def __init__(self) -> None:
        self._calls: list[LoopCall] = []
        self._is_leaving = False
        #: Its thread ends with the loop.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="celery-batch-send")

    def add(self, loop: asyncio.AbstractEventLoop, call: LoopCall) -> None:
        """Have a call leave once all coroutines that are ready have had their turn."""
        self._calls.append(call)
        if not self._is_leaving:
            self._is_leaving = True
            loop.call_soon(self._leave, loop)

    def _leave(self, loop: asyncio.AbstractEventLoop) -> None:
        calls, self._calls = [call for call in self._calls if not call.future.done()], []
        self._is_leaving = bool(calls)
        if not calls:
            return
        untaken = [calls]
        try:
            self._writer.submit(self._write, loop, untaken)
        except RuntimeError:  # the interpreter is ending, or there are too many threads
            untaken.clear()  # the executor keeps them, and would write them with the next ones
            self._arrived(loop, calls, _send(calls))

    def _write(self, loop: asyncio.AbstractEventLoop, untaken: list[list[LoopCall]]) -> None:
        """Write calls, in the thread for it, and have the loop tell what has come of that."""
        if not untaken:
            return
        calls = untaken.pop()
        try:
            outcomes = _send(calls)
        except BaseException as error:  # noqa: BLE001 (it is raised where the calls were made)
            outcomes = [error] * len(calls)
        try:
            loop.call_soon_threadsafe(self._arrived, loop, calls, outcomes)
        except RuntimeError:  # the loop is closed; what was sent may still be called back
            _tell(calls, outcomes)

    def _arrived(
        self, loop: asyncio.AbstractEventLoop, calls: list[LoopCall], outcomes: list[Any]
    ) -> None:
        try:
            _tell(calls, outcomes)
        finally:
            self._leave(loop)


#: Each loop's own, which is used in its thread alone.
_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _Outgoing] = WeakKeyDictionary()


def _outgoing(loop: asyncio.AbstractEventLoop) -> _Outgoing:
    found = _loops.get(loop)
    if found is None:
        found = _loops[loop] = _Outgoing()
    return found


async def first_look(task: Any, options: Mapping[str, Any], items: int | None = None) -> None:
    """
    Wait, if ``max_queue`` needs it, for the first look at the queue that calls go to.

    `send_soon` and `room_for` do not have to wait for it then, which would block the loop.

    Args:
        task: The task that is called.
        options: As for `apply_async`, the same for all calls.
        items: How many items there are; by default those of one call.
    """
    room = Publisher.of(task.app).room()
    if room.limit(task) is not None:
        await room.first_look(task, {**options}, items or items_of(options))


def send_soon(
    call: tuple[Any, Any, Any, dict[str, Any]],
    future: asyncio.Future[Any],
    sent: Callable[[asyncio.Future[Any], Any], object],
    on_abandoned: Callable[[Any], object] | None,
) -> Passage:
    """
    Have a call leave once all coroutines that are ready have had their turn.

    Args:
        call: The task, its arguments by position and by name, and options as for `apply_async`.
        future: Of this loop; see `LoopCall`, as of the others.
        sent: Told that the broker has it.
        on_abandoned: Called with the result where nobody waits for it any more.

    Returns:
        A context to wait in.

    Raises:
        QueueFull: There is no room for it.
    """
    task, _, _, options = call
    room = Publisher.of(task.app).room()
    loop = future.get_loop()
    context = _context(task, is_admitted=room.limit(task) is not None)
    passage = room.passage(task, options, items_of(options))
    _outgoing(loop).add(loop, LoopCall(*call, context, passage, future, sent, on_abandoned))
    return passage


def _context(task: Any, *, is_admitted: bool) -> Context:
    """Return the context for a call that may pass."""
    if not is_admitted:
        return copy_context()
    with admitted((task.name,)):
        return copy_context()


def _send(calls: list[LoopCall]) -> list[Any]:
    """Send calls in one write, each in its own context; return results and errors."""
    gathering, outcomes = Gathering(), []
    alike = Alike(gathering) if len(calls) >= _SEVERAL else None
    for call in calls:
        try:
            outcomes.append(call.context.run(call.send, gathering, alike))
        except Exception as error:  # noqa: BLE001 (it is raised where the call was made)
            outcomes.append(error)
    with closing(gathering), suppress(Exception):  # the same
        gathering.flush()
    for call in calls:  # at once: the loop may be long in coming round to them
        call.passage.close()
    unsent = {result.id for result in gathering.unsent}
    return [gathering.failure if getattr(each, "id", None) in unsent else each for each in outcomes]


def _tell(calls: list[LoopCall], outcomes: list[Any]) -> None:
    for call, outcome in zip(calls, outcomes, strict=True):
        try:
            call.tell(outcome)
        except Exception as error:  # one's own, and not its neighbours'
            if call.future.done():
                logger.exception("A call of %s was sent, and nobody could be told", call.task.name)
            else:
                call.future.set_exception(error)


async def apply_async(
    task: Any,
    args: Any,
    kwargs: Any,
    options: dict[str, Any],
    *,
    on_abandoned: Callable[[Any], object] | None = None,
) -> Any:
    """
    Send a call and return its result when the broker has it.

    Args:
        task: The task that is called.
        args: Positional arguments, or None.
        kwargs: Keyword arguments, or None.
        options: As for `apply_async`.
        on_abandoned: Called with the result of a call that was cancelled while it was sent.
            One that is cancelled before is not sent.

    Raises:
        QueueFull: There is no room for it; said at once, and not after other calls' writes.
    """
    await first_look(task, options)
    parent = task.app.current_worker_task
    if parent:  # known to this thread alone
        request = parent.request
        options = {"root_id": request.root_id or request.id, "parent_id": request.id, **options}
        if task.app.conf.task_inherit_parent_priority and request.delivery_info:
            options.setdefault("priority", request.delivery_info.get("priority"))
    future = asyncio.get_running_loop().create_future()
    with send_soon((task, args, kwargs, options), future, _note, on_abandoned):
        try:
            result = await future
        except asyncio.CancelledError:
            # It may come in the same pass of the loop as the result.
            if on_abandoned and future.done() and not (future.cancelled() or future.exception()):
                on_abandoned(future.result())
            raise
    if parent and options.get("add_to_parent", True):
        parent.add_trail(result)
    return result


def _note(future: asyncio.Future[Any], result: Any) -> None:
    future.set_result(result)


async def apply_and_wait(
    task: Any,
    args: Any,
    options: dict[str, Any],
    deadline: float,
    on_abandoned: Callable[[Any], object],
) -> Any:
    """
    Send a call, and return its result when the task has ended, or at the deadline.

    The coroutine is woken once, and not when the call was sent and again when it has ended;
    and one timer serves for both.  Not for use within a Celery task.

    Args:
        task: The task that is called.
        args: Positional arguments.
        options: As for `apply_async`.
        deadline: By the monotonic clock.
        on_abandoned: Called with the result of a call that was cancelled although it was sent,
            and of one that was sent too late.

    Raises:
        QueueFull: There is no room for it.
        TimeoutError: It was not sent in time.
    """
    await first_look(task, options)
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
        is_received = not (result.is_elsewhere or result.parent) and is_listening(result.app)
        pending = result.pending_result
        if not (is_received and pending.registry.add_callback(pending, complete)):
            future.set_result(None)  # who calls has to poll

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
        if result is not None and result.pending_result.value is None:
            result.pending_result.registry.remove_callback_later(result.pending_result, complete)
    return result
