"""
uvicorn's HTTP with an end to its headers: ``uvicorn --http webapp.uvicorn_http:BoundedHttp``.

uvicorn's quick parser takes headers of any length and number, and keeps them all until they
are complete; a proxy before it sets limits, and where there is none, this does.
"""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["BoundedHttp"]

#: Most bytes before a body, as in uvicorn's other parser.
_LONGEST = 65_536

#: Bytes that the parser is given at once: where a head begins inside of them is not known.
_PIECE = 16_384

_REFUSAL = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"connection: close\r\ncontent-length: 0\r\n\r\n"
)


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

    def on_message_complete(self) -> None:
        """Note that another head may begin."""
        self._open, self._is_open, self._is_new = 0, True, True
        super().on_message_complete()
