"""An HTTP request and its answer, before and after a framework has given them a form."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from webapp.straight import straight

__all__ = ["Answer", "Ask", "Stream"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
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
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    client: str = ""
    root: str = ""
    connection: int | None = None
    flaw: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """
    An HTTP answer, before a framework has given it a form.

    Args:
        status: The HTTP status.
        body: What JSON can say, or bytes as they are, or text that comes bit by bit: an
            object that is both iterable and async iterable, as `Stream` is.
        headers: Those that the meaning of the answer needs.
    """

    status: int = HTTPStatus.OK
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)


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
