"""What is known of one request from its coming to the end of its answer."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from typing import Any

from webapp import request_id
from webapp.logs import AccessLine, access
from webapp.messages import Ask, Stream
from webapp.rates import Allowance

__all__ = ["Held", "Pass"]


class Pass:
    """
    One request, until it is answered to the end.

    Args:
        ask: The request.
        address: What its client is counted as, unless it has a key.
    """

    __slots__ = ("_leave", "_since", "_token", "address", "allowance", "ask", "client", "name")

    def __init__(self, ask: Ask, address: str) -> None:
        self.ask = ask
        self.address = address
        self.client = address
        self.allowance: Allowance | None = None
        self.name = request_id.request_id(ask.headers.get("x-request-id"))
        self._token = request_id.enter(self.name)
        self._since = time.monotonic()
        self._leave: Callable[[str], None] | None = None

    def holds(self, leave: Callable[[str], None]) -> None:
        """
        Note what has to be given back.

        Args:
            leave: Called with the client, once.
        """
        self._leave = leave

    def end(self, status: int) -> None:
        """
        Give back what is held, and write the line of the log.

        Args:
            status: The answer's; 499 where nobody wanted it any more.
        """
        leave, self._leave = self._leave, None
        if leave is not None:
            leave(self.client)
        if access.isEnabledFor(logging.INFO):
            line = AccessLine(
                method=self.ask.method,
                path=self.ask.path,
                status=int(status),
                seconds=time.monotonic() - self._since,
                size=len(self.ask.body),
                client=self.client,
            )
            if self.client != self.address:
                line["address"] = self.address
            access.info(line)

    def forget(self) -> None:
        """Leave the thread or the coroutine to other requests."""
        request_id.leave(self._token)


class Held(Stream):
    """
    A body that comes bit by bit, whose end is the end of its request.

    Args:
        body: The body; both iterable and async iterable.
        held: Its request's.
        status: The answer's.
    """

    def __init__(self, body: Any, held: Pass, status: int) -> None:
        self._body = body
        self._held: Pass | None = held
        self._status = status

    def __iter__(self) -> Iterator[str]:
        """Go through the body in a thread."""
        token = request_id.enter(self._held.name if self._held else request_id.NONE)
        try:
            yield from self._body
        finally:
            self._end()
            request_id.leave(token)

    async def __aiter__(self) -> AsyncIterator[str]:
        """Go through the body on an event loop."""
        token = request_id.enter(self._held.name if self._held else request_id.NONE)
        chunks = aiter(self._body)
        try:
            async for chunk in chunks:
                yield chunk
        finally:
            self._end()
            request_id.leave(token)
            if isinstance(chunks, AsyncGenerator):
                await chunks.aclose()

    def __del__(self) -> None:
        """End the request also where the server has never begun to read."""
        self._end()

    def _end(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.end(self._status)
