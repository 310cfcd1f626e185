"""An event loop in a thread of its own, where requests wait that have no thread."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from webapp.hangups import hangups

__all__ = ["Attendant", "Ended", "Making"]

#: Seconds after which a client is watched; most answers come before it is worth anything.
_WATCH_AFTER = 0.25

#: Seconds that cancelled requests have at the end.
_LAST_WORDS = 1.0

#: Makes an answer, or a part of one; called and awaited on the loop.
Making = Callable[[], Awaitable[Any]]

#: Told on the loop how a request has ended, so briefly: cancelled where its client has gone.
Ended = Callable[[asyncio.Task[Any]], object]


class Attendant:
    """Has answers made, and says when each of them is there."""

    def __init__(self) -> None:
        self._loop = _new_loop()
        self._arrivals: deque[tuple[Making, int, Ended]] = deque()
        self._is_called = False
        #: What is to be let go of when a request has ended: a timer, or who watches its client.
        self._waits: dict[asyncio.Task[Any], Callable[[], object]] = {}
        self._thread = threading.Thread(target=self._run, name="webapp-attendant", daemon=True)
        self._thread.start()

    def take(self, making: Making, connection: int, ended: Ended) -> None:
        """
        Have an answer made, after the next `begin`; it is cancelled when its client goes.

        Args:
            making: Makes it.
            connection: The descriptor of the client's connection, open until it has ended.
            ended: Called once.
        """
        self._arrivals.append((making, connection, ended))

    def begin(self) -> None:
        """Have all begun that have been taken; in any thread."""
        if self._arrivals and not self._is_called:
            # Of two threads here both may call, which costs a wake-up.
            self._is_called = True
            self._loop.call_soon_threadsafe(self._begin)

    def close(self) -> None:
        """Cancel what still waits, and end the thread."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _begin(self) -> None:
        self._is_called = False
        while self._arrivals:
            making, connection, ended = self._arrivals.popleft()
            task = self._loop.create_task(_made(making))
            timer = self._loop.call_later(_WATCH_AFTER, self._watch, task, connection)
            self._waits[task] = timer.cancel
            task.add_done_callback(partial(self._end, ended))

    def _watch(self, task: asyncio.Task[Any], connection: int) -> None:
        cancel = partial(self._loop.call_soon_threadsafe, task.cancel)
        watching = ExitStack()
        self._waits[task] = watching.close
        watching.enter_context(hangups().watch(connection, cancel))

    def _end(self, ended: Ended, task: asyncio.Task[Any]) -> None:
        try:
            self._waits.pop(task)()
        finally:
            ended(task)

    async def _stop(self) -> None:
        waiting = [*self._waits]
        for task in waiting:
            task.cancel()
        if waiting:  # for what they do about it
            await asyncio.wait(waiting, timeout=_LAST_WORDS)
        self._loop.call_soon(self._loop.stop)


async def _made(making: Making) -> Any:
    try:
        return await making()
    except (SystemExit, KeyboardInterrupt) as error:  # either would end everybody's loop
        raise RuntimeError("an answer has tried to end the server") from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # By something of its own: its client has not gone, and is to hear of it.
        raise RuntimeError("an answer has been cancelled from inside") from error


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # noqa: PLC0415 (there is none for Windows)
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
