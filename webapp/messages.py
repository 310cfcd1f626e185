"""An HTTP request and its answer, before and after a framework has given them a form."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, NamedTuple

from webapp.straight import straight

__all__ = ["Answer", "Ask", "Stream"]


_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Ask(NamedTuple):
    """
    An HTTP request, as a door hands it over.

    Args:
        method: In capitals.
        path: Without the query.
        query: What follows the question mark.
        headers: Their names in lower case.
        body: As it came; never longer than one byte over the limit.
        client: The address that it came from.
        root: The path below which the app is, as its server says: ``/models``; empty for the
            host's own.
        connection: The descriptor of its connection, where a thread waits for the answer
            and only so learns that the client has gone.
        flaw: Why it is not worth a look, as an error of `webapp.errors`.
    """

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = _NO_HEADERS
    body: bytes = b""
    client: str = ""
    root: str = ""
    connection: int | None = None
    flaw: Exception | None = None


class Answer(NamedTuple):
    """
    An HTTP answer, before a framework has given it a form.

    Args:
        body: What JSON can say, or bytes as they are, or text that comes bit by bit: an
            object that is both iterable and async iterable, as `Stream` is.
        status: The HTTP status.
        headers: Those that the meaning of the answer needs.
    """

    body: Any
    status: int = HTTPStatus.OK
    headers: Mapping[str, str] = _NO_HEADERS


class Stream:
    """
    The body of an answer that comes bit by bit.

    Args:
        chunks: Made with the way of the visit, so that iterated over in a thread it
            blocks and never suspends.
    """

    def __init__(self, chunks: AsyncGenerator[str]) -> None:
        self._chunks = chunks

    def __aiter__(self) -> AsyncIterator[str]:
        return self._chunks

    def __iter__(self) -> Iterator[str]:
        try:
            while True:
                try:
                    yield straight(anext(self._chunks))
                except StopAsyncIteration:
                    return
        finally:
            straight(self._chunks.aclose())
