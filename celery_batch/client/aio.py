"""
Calls from coroutines, written together and beside the event loop.

Those that come while a write is on its way leave with the next one, in one thread
of the loop's executor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing, suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from celery_batch.client.alike import Alike
from celery_batch.client.gathering import Gathering, gathered_by
from celery_batch.client.publisher import Publisher
from celery_batch.client.room import Passage, admitted, items_of

__all__ = ["apply_async"]

#: Calls in one write from which on it pays to look up what they have in common.
_SEVERAL = 4


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
    loop = asyncio.get_running_loop()
    parent = task.app.current_worker_task
    if parent:  # known to this thread alone
        request = parent.request
        options = {"root_id": request.root_id or request.id, "parent_id": request.id, **options}
        if task.app.conf.task_inherit_parent_priority and request.delivery_info:
            options.setdefault("priority", request.delivery_info.get("priority"))
    future = loop.create_future()
    room = Publisher.of(task.app).room()
    with room.passage(task, options, items_of(options)) as passage:
        context = _context(task, is_admitted=room.limit(task) is not None)
        call = _Call(task, args, kwargs, options, context, passage, future, on_abandoned)
        _outgoing(loop).add(loop, call)
        result = await future
    if parent and options.get("add_to_parent", True):
        parent.add_trail(result)
    return result


def _context(task: Any, *, is_admitted: bool) -> Context:
    """Return the context for a call that may pass."""
    if not is_admitted:
        return copy_context()
    with admitted((task.name,)):
        return copy_context()


class _Call(NamedTuple):
    task: Any
    args: Any
    kwargs: Any
    options: dict[str, Any]
    context: Context
    passage: Passage
    future: asyncio.Future[Any]
    on_abandoned: Callable[[Any], object] | None

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
        self._calls: list[_Call] = []
        self._is_leaving = False

    def add(self, loop: asyncio.AbstractEventLoop, call: _Call) -> None:
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
        try:
            writing = loop.run_in_executor(None, _send, calls)
        except RuntimeError as error:  # the executor is shut down
            self._is_leaving = False
            _tell(calls, [error] * len(calls))
            return
        writing.add_done_callback(partial(self._arrived, loop, calls))

    def _arrived(
        self, loop: asyncio.AbstractEventLoop, calls: list[_Call], writing: asyncio.Future[Any]
    ) -> None:
        if writing.cancelled():
            outcomes: list[Any] = [RuntimeError("the event loop ended")] * len(calls)
        elif (error := writing.exception()) is not None:
            outcomes = [error] * len(calls)
        else:
            outcomes = writing.result()
        _tell(calls, outcomes)
        self._leave(loop)


#: Each loop's own, which is used in its thread alone.
_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _Outgoing] = WeakKeyDictionary()


def _outgoing(loop: asyncio.AbstractEventLoop) -> _Outgoing:
    found = _loops.get(loop)
    if found is None:
        found = _loops[loop] = _Outgoing()
    return found


def _send(calls: list[_Call]) -> list[Any]:
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


def _tell(calls: list[_Call], outcomes: list[Any]) -> None:
    for call, outcome in zip(calls, outcomes, strict=True):
        if call.future.done():  # nobody waits for it any more
            if call.on_abandoned is not None and not isinstance(outcome, BaseException):
                call.on_abandoned(outcome)
            continue
        if isinstance(outcome, BaseException):
            call.future.set_exception(outcome)
        else:
            call.future.set_result(outcome)
