"""
uvicorn's HTTP with an end to its headers: ``uvicorn --http webapp.uvicorn_http:BoundedHttp``.

uvicorn's quick parser takes headers of any length and number, and keeps them all until they
are complete; a proxy before it sets limits, and where there is none, this does.

uvicorn looks through each header of each answer, and writes its head by itself: its client is
woken twice.  Here headers are looked at once, and head and body leave together.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from uvicorn.protocols.http.httptools_impl import (
    HEADER_RE,
    HEADER_VALUE_RE,
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

__all__ = ["BoundedHttp"]

#: Most bytes before a body, as in uvicorn's other parser.
_LONGEST = 65_536

#: Bytes that the parser is given at once: where a head begins inside of them is not known.
_PIECE = 16_384

_REFUSAL = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"connection: close\r\ncontent-length: 0\r\n\r\n"
)

#: Most bytes of a body that are copied behind their head.
_SHORT = 65_536

#: Headers that say how the connection goes on, which is uvicorn's business.
_CONNECTION = frozenset({b"connection", b"transfer-encoding"})


class BoundedHttp(HttpToolsProtocol):
    """One connection, on which a request's head is refused once it is too long."""

    #: Bytes of the head that has begun and is not complete, but for its first piece.
    _open = 0
    _is_open = True
    _is_new = True

    def data_received(self, data: bytes) -> None:
        """Take what has come: at most a quarter of a MiB, with the event loops there are."""
        for start in range(0, len(data), _PIECE):
            if self.transport.is_closing():
                return
            self._take(data[start : start + _PIECE] if len(data) > _PIECE else data)

    def _take(self, piece: bytes) -> None:
        self._is_new = False
        super().data_received(piece)
        # What ended in this piece, a body or another head, is no part of the next head.
        if not self._is_open or self._is_new or self.transport.is_closing():
            return
        self._open += len(piece)
        if self._open > _LONGEST:
            self.transport.write(_REFUSAL)
            self.transport.close()

    def on_headers_complete(self) -> None:
        """Note that the head is complete."""
        self._is_open = False
        super().on_headers_complete()
        if type(self.cycle) is RequestResponseCycle:  # its answer has not begun
            self.cycle.__class__ = _Cycle

    def on_message_complete(self) -> None:
        """Note that another head may begin."""
        self._open, self._is_open, self._is_new = 0, True, True
        super().on_message_complete()


class _Cycle(RequestResponseCycle):
    """One answer; its head waits for its body where that has a length, and so will not be long."""

    _head: Any = None

    async def send(self, message: Any) -> None:
        """Write what an app sends, as uvicorn does but for what is usual."""
        is_start = message["type"] == "http.response.start" and not self.response_started
        if is_start and any(name == b"content-length" for name, _ in message.get("headers", ())):
            self._head = message
            return
        head, self._head = self._head, None
        if head is None:
            await super().send(message)
        elif not self._send_together(head, message):
            await super().send(head)
            await super().send(message)

    def _send_together(self, head: Any, message: Any) -> bool:
        """Write head and body at once; say whether that could be done."""
        is_usual = self.keep_alive and not self.access_log and self.scope["method"] != "HEAD"
        is_ready = not (self.disconnected or self.flow.write_paused)
        body, headers = message.get("body", b""), [*self.default_headers, *head["headers"]]
        is_all = not message.get("more_body") and len(body) <= _SHORT
        if not (is_usual and is_ready and is_all):
            return False
        if (b"content-length", b"%d" % len(body)) not in headers:
            return False
        lines = _lines(headers)
        if lines is None:
            return False
        self.response_started = self.response_complete = True
        self.waiting_for_100_continue = False
        self.transport.write(b"".join((STATUS_LINE[head["status"]], *lines, b"\r\n", body)))
        self.message_event.set()
        self.on_response()
        return True


def _lines(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes] | None:
    """Return headers as they go over the wire; None if uvicorn has to look at them."""
    lines = []
    for name, value in headers:
        line = _line(name, value)
        if line is None:
            return None
        lines.append(line)
    return lines


@lru_cache(maxsize=512)
def _line(name: bytes, value: bytes) -> bytes | None:
    name = name.lower()
    if name in _CONNECTION or HEADER_RE.search(name) or HEADER_VALUE_RE.search(value):
        return None
    return b"%b: %b\r\n" % (name, value)
