"""
What goes on, told once a second to everybody who looks: the stream behind the page's charts.

Rule 1: One thread looks, however many are told, and only while somebody is.
Rule 2: Nobody is waited for.  There is one text, the newest; who is slow misses some.
Rule 3: Every stream ends by itself after a while, and soon when the server is to stop: a
    server that waits for its open answers must not wait for these.  The client comes back.
    All that a stream says in its life fits into a socket's buffer, so that even a client
    that reads nothing holds nobody up.
Rule 4: On a server with a thread for each request a viewer occupies one.  A few may; others get
    one look and come again, so that the page never takes what requests need.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

__all__ = ["Live", "LiveStream"]

log = logging.getLogger(__name__)

#: Seconds between two looks.
_PAUSE = 1.0

#: Seconds until a stream ends and its client has to come back.
_LIFE = 20.0

#: Seconds without news after which a viewer is told that the line is still there.
_HEARTBEAT = 5.0

#: Seconds that somebody who only comes now and then keeps the thread at work.
_LINGER = 4.0

#: The first words of a stream: when to come back after its end, in milliseconds.
_HELLO = "retry: 2000\n\n"
_STILL_HERE = ": still here\n\n"


class Live:
    """
    Looks once a second while somebody is looking, and tells all of them.

    Args:
        look: Returns what JSON can say of the moment; called by one thread.
        rest: Called by that thread when nobody looks any more.
        threads: Viewers that may hold a thread each at the same time.
        pause: Seconds from one look to the next.
    """

    def __init__(
        self,
        look: Callable[[], Mapping[str, Any]],
        *,
        rest: Callable[[], object] = lambda: None,
        threads: int = 4,
        pause: float = _PAUSE,
    ) -> None:
        self._look = look
        self._rest = rest
        self._pause = pause
        self._seats = threading.BoundedSemaphore(threads)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._looks = False
        self._viewers = 0
        self._bells: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self._wanted = 0.0
        self._number = 0
        self._newest = ""
        self._stopped = False

    def stream(self) -> LiveStream:
        """Return what one viewer is told, to be iterated in a thread or on an event loop."""
        return LiveStream(self)

    def stop(self) -> None:
        """End all streams within a second; may be called by a signal's handler."""
        # No lock: the handler runs on top of a thread that may hold it.
        self._stopped = True

    def told(self) -> Iterator[str]:
        """Yield server-sent events, in the caller's own thread."""
        seated = self._seats.acquire(blocking=False)
        until = time.monotonic() + (_LIFE if seated else 0.0)
        self._enter()
        try:
            yield _HELLO
            seen, ends = 0, False
            while not ends and not self._stopped:
                number, text = self._after(seen)
                ends = time.monotonic() >= until and number > seen
                seen = number
                yield text
        finally:
            self._leave()
            if seated:
                self._seats.release()

    async def atold(self) -> AsyncIterator[str]:
        """Yield server-sent events, on an event loop."""
        bell, until = asyncio.Event(), time.monotonic() + _LIFE
        self._enter(bell)
        try:
            yield _HELLO
            seen = 0
            while time.monotonic() < until and not self._stopped:
                bell.clear()
                if self._number == seen:
                    try:
                        async with asyncio.timeout(_HEARTBEAT):
                            await bell.wait()
                    except TimeoutError:
                        yield _STILL_HERE
                    continue
                seen = self._number
                yield self._newest
        finally:
            self._leave(bell)

    def _enter(self, bell: asyncio.Event | None = None) -> None:
        with self._changed:
            self._viewers += 1
            if bell is not None:
                self._bells[bell] = asyncio.get_running_loop()
            if not self._looks:
                # The last one may still be closing what the next one opens.
                self._thread = threading.Thread(
                    target=self._run, args=(self._thread,), name="live", daemon=True
                )
                self._looks = True
                self._thread.start()

    def _leave(self, bell: asyncio.Event | None = None) -> None:
        with self._changed:
            self._wanted = time.monotonic()
            if bell is None or self._bells.pop(bell, None) is not None:
                self._viewers -= 1

    def _after(self, seen: int) -> tuple[int, str]:
        """Wait for news after a number, or long enough to say that there are none."""
        with self._changed:
            deadline = time.monotonic() + _HEARTBEAT
            while self._number == seen and not self._stopped and time.monotonic() < deadline:
                self._changed.wait(_PAUSE)
            return (self._number, self._newest) if self._number > seen else (seen, _STILL_HERE)

    def _run(self, last: threading.Thread | None) -> None:
        if last is not None:
            last.join()
        try:
            while self._is_wanted():
                began = time.monotonic()
                self._tell(self._text())
                left = self._pause - (time.monotonic() - began)
                time.sleep(max(left, self._pause / 10))
        finally:
            self._rest()

    def _is_wanted(self) -> bool:
        with self._changed:
            lately = time.monotonic() - self._wanted < _LINGER
            if (self._viewers or lately) and not self._stopped:
                return True
            # What was true then is no news for who comes next.
            self._looks, self._number, self._newest = False, 0, ""
            self._ring()
            return False

    def _text(self) -> str:
        try:
            return f"data: {json.dumps(self._look(), separators=(',', ':'))}\n\n"
        except Exception:
            log.exception("looking at what goes on")
            return _STILL_HERE

    def _tell(self, text: str) -> None:
        with self._changed:
            self._number += 1
            self._newest = text
            self._ring()

    def _ring(self) -> None:
        self._changed.notify_all()
        bells: dict[asyncio.AbstractEventLoop, list[asyncio.Event]] = {}
        for bell, loop in self._bells.items():
            bells.setdefault(loop, []).append(bell)
        for loop, those in bells.items():
            try:
                loop.call_soon_threadsafe(_set_all, those)
            except RuntimeError:  # the loop has ended, and its viewers with it
                for bell in those:
                    del self._bells[bell]
                    self._viewers -= 1


class LiveStream:
    """
    What one viewer is told: text chunks, for a thread or for an event loop.

    Args:
        live: Who tells.
    """

    def __init__(self, live: Live) -> None:
        self._live = live

    def __iter__(self) -> Iterator[str]:
        return self._live.told()

    def __aiter__(self) -> AsyncIterator[str]:
        return self._live.atold()


def _set_all(bells: list[asyncio.Event]) -> None:
    for bell in bells:
        bell.set()
