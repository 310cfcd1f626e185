"""One request on its way through gunicorn's threads."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from typing import Any

from gunicorn.http import wsgi

from webapp.messages import Answer
from webapp.parked import OFFER, Parked

__all__ = ["Turn"]

#: The last is nginx's, for a client that has closed its half of the connection: it may read.
_GONE = Answer(status=499, body=b"", headers={"Content-Length": "0"})
_STATUS = {
    **{each.value: f"{each.value} {each.phrase}" for each in HTTPStatus},
    _GONE.status: f"{_GONE.status} Client Closed Request",
}

#: Most bytes of a body that are copied behind their head.
_SHORT = 65_536


class _Packet:
    """
    Takes for a socket what leaves together: gunicorn sends a head, and then a body.

    Twice is twice the price of a short answer's sending, and its client is woken twice.
    """

    __slots__ = ("pieces",)

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def sendall(self, piece: bytes) -> None:
        """Take a piece."""
        self.pieces.append(piece)


class Turn:
    """
    What gunicorn's threaded worker does for a request, in two halves, or three.

    A request that is parked has its second half later, in whichever thread; of all others
    the first is the whole.  If its answer comes bit by bit, it is parked again meanwhile.

    Args:
        worker: gunicorn's.
        req: The request.
        conn: Its connection.
        is_last: Whether the connection is closed after it.
    """

    def __init__(self, worker: Any, req: Any, conn: Any, *, is_last: bool) -> None:
        self._worker = worker
        self.req = req
        self._since = time.monotonic()
        self._resp, self._environ = wsgi.create(
            req, conn.sock, conn.client, conn.server, worker.cfg
        )
        self._environ["wsgi.multithread"] = True
        self._environ[OFFER] = True
        self._sock = conn.sock
        if is_last:
            self._resp.force_close()
        #: What the app has returned, if it is that.
        self._parked: Parked | None = None
        #: What is to be waited for next, on an event loop.
        self.making: Callable[[], Awaitable[Any]] | None = None
        self._is_streaming = False
        self._packet: _Packet | None = None

    def begin(self) -> bool | None:
        """
        Ask the app, and send what it answers.

        Returns:
            Whether the connection may have another request; None if this one is parked.

        Raises:
            StopIteration: The answer broke off in its middle, so the connection is closed.
            Exception: It has failed before anything was sent.
        """
        return self._minding(self._ask)

    def end(self, made: asyncio.Task[Any]) -> bool | None:
        """
        Send the answer of a request that was parked; return and raise as `begin`.

        Args:
            made: What has come of it; cancelled where its client has gone.
        """
        half = self._end_stream if self._is_streaming else self._answer
        return self._minding(partial(half, made))

    def _ask(self) -> bool | None:
        body = self._worker.wsgi(self._environ, self._resp.start_response)
        if isinstance(body, Parked):
            self._parked, self.making = body, body.answering
            return None
        return self._send(body, body)

    def _answer(self, made: asyncio.Task[Answer]) -> bool | None:
        if not self._worker.alive:
            self._resp.force_close()  # its process has been told to stop meanwhile
        try:
            answer = _GONE if made.cancelled() else made.result()
            headers = self._parked.headers_of(answer) if self._parked else []
            self._resp.start_response(_STATUS[answer.status], headers)
            if not isinstance(answer.body, bytes):
                self._resp.send_headers()
                self.making, self._is_streaming = partial(self._stream, answer.body), True
                return None
        except BaseException:
            self._let_go(self._parked)
            raise
        if len(answer.body) <= _SHORT:
            self._resp.sock = self._packet = _Packet()
        return self._send([answer.body], self._parked)

    async def _stream(self, body: AsyncIterable[str]) -> None:
        """Have each piece written by a thread, as it comes."""
        chunks = aiter(body)
        try:
            async for chunk in chunks:
                await self._written(chunk.encode())
        finally:
            if isinstance(chunks, AsyncGenerator):
                await chunks.aclose()

    async def _written(self, chunk: bytes) -> None:
        writing = asyncio.wrap_future(self._worker.by_hand(partial(self._resp.write, chunk)))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            # The connection is not to be closed, and its number used again, below who writes.
            with suppress(OSError):
                socket.socket.shutdown(self._sock, socket.SHUT_RDWR)
            await asyncio.wait([writing])
            writing.exception()  # which nobody else asks for now
            raise
        finally:
            del writing  # it may hold an error, which holds this frame

    def _end_stream(self, made: asyncio.Task[None]) -> bool:
        return self._send(_nothing_more(made), self._parked)

    def _send(self, chunks: Any, body: Any) -> bool:
        try:
            if isinstance(chunks, self._environ["wsgi.file_wrapper"]):
                self._resp.write_file(chunks)
            else:
                for chunk in chunks:
                    self._resp.write(chunk)
            self._resp.close()
            if self._packet is not None:
                self._sock.sendall(b"".join(self._packet.pieces))
        finally:
            taken = timedelta(seconds=time.monotonic() - self._since)
            self._worker.log.access(self._resp, self.req, self._environ, taken)
            self._let_go(body)
        return not self._resp.should_close()

    def _let_go(self, body: Any) -> None:
        if hasattr(body, "close"):
            body.close()

    def _minding(self, half: Callable[[], bool | None]) -> bool | None:
        keeps: bool | None = False
        try:
            keeps = half()
        except OSError:
            raise  # the client's connection; the worker knows what to make of it
        except Exception:
            if not self._resp.headers_sent:
                raise
            # An error's page would look like more of this answer.
            self._worker.log.exception("Error handling request")
            raise StopIteration from None
        finally:
            if keeps is not None:
                self._call_hook()
        return keeps

    def _call_hook(self) -> None:
        try:
            self._worker.cfg.post_request(self._worker, self.req, self._environ, self._resp)
        except Exception:
            self._worker.log.exception("Exception in post_request hook")


def _nothing_more(made: asyncio.Task[None]) -> Iterator[bytes]:
    """Yield what is left of an answer whose pieces have been written; raise if not all were."""
    # An error of its own: that of the piece would hold what holds it, and the piece as well.
    if made.cancelled() or isinstance(made.exception(), OSError):
        raise BrokenPipeError("the client has gone")
    made.result()
    yield from ()
