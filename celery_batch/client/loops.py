"""Wakes coroutines, however many, by one call into their event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import suppress

__all__ = ["Doorbell"]

_local = threading.local()


class Doorbell:
    """
    Hands futures over to the event loop that they belong to.

    Args:
        loop: The event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._done: deque[asyncio.Future[None]] = deque()
        self._is_ringing = False

    @classmethod
    def here(cls) -> Doorbell:
        """Return that of the event loop that runs in this thread."""
        loop = asyncio.get_running_loop()
        found: Doorbell | None = getattr(_local, "doorbell", None)
        if found is None or found.loop is not loop:
            found = _local.doorbell = cls(loop)
        return found

    def future(self) -> asyncio.Future[None]:
        """Return a new future of this loop."""
        return self.loop.create_future()

    def ring(self, future: asyncio.Future[None]) -> None:
        """Have a future done soon, from any thread."""
        self._done.append(future)
        if not self._is_ringing:
            self._is_ringing = True
            with suppress(RuntimeError):  # the loop is closed: nobody waits there any more
                self.loop.call_soon_threadsafe(self._open)

    def _open(self) -> None:
        self._is_ringing = False  # before we look: who comes later rings again
        while self._done:
            future = self._done.popleft()
            if not future.done():
                future.set_result(None)
