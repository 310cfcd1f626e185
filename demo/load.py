"""
Many clients at once, each asking again as soon as it is answered, and what that shows.

Clients are coroutines that keep their connection open: on the machine of a demo they
share the processors with the servers they measure, and threads with ``http.client``
took three times as much of them.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

__all__ = ["Load", "Question", "run_load"]

#: Seconds after which an unanswered request counts as an error; web servers give up earlier.
REQUEST_TIMEOUT = 90.0

#: Seconds between two looks at the servers under load.
CHECK_EVERY = 0.25

#: What ends one request and leaves the next one its chance; a time-out is an OSError.
_FAILURES = (OSError, EOFError, ValueError)

_Wire = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class Question:
    """A sentence and the answer it must get, however many others are asked meanwhile."""

    sentence: str
    answer: str


@dataclass(frozen=True, slots=True)
class Load:
    """What a load has shown: how long it took, each good request's latency, each error."""

    seconds: float
    latencies: list[float]
    errors: list[str]

    @property
    def per_second(self) -> float:
        """Good answers per second."""
        return len(self.latencies) / self.seconds

    def quantile(self, share: float) -> float:
        """Return the seconds within which this share of the good answers came; nan of none."""
        if not self.latencies:
            return math.nan
        rank = math.ceil(share * len(self.latencies))
        return sorted(self.latencies)[max(rank, 1) - 1]


def run_load(
    url: str,
    questions: Iterable[Question],
    *,
    clients: int,
    on_answer: Callable[[], object] = lambda: None,
    check: Callable[[], object] = lambda: None,
) -> Load:
    """
    Ask all questions, each in the form field ``s`` of a request, from many clients at once.

    `check` is called a few times a second; what it raises ends the load.
    """
    return asyncio.run(_Driver(url, iter(questions), on_answer).run(clients, check))


class _Driver:
    """One load while it runs."""

    def __init__(
        self, url: str, questions: Iterator[Question], on_answer: Callable[[], object]
    ) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname, parts.port
        self._head = (
            f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: "
        )
        self._questions = questions
        self._on_answer = on_answer
        self._latencies: list[float] = []
        self._errors: list[str] = []

    async def run(self, clients: int, check: Callable[[], object]) -> Load:
        began = time.perf_counter()
        asking = {asyncio.create_task(self._client()) for _ in range(clients)}
        while asking:
            check()
            done, asking = await asyncio.wait(asking, timeout=CHECK_EVERY)
            for client in done:
                client.result()
        return Load(time.perf_counter() - began, self._latencies, self._errors)

    async def _client(self) -> None:
        """Ask question after question, over one connection for as long as that stays."""
        wire: _Wire | None = None
        try:
            for question in self._questions:
                stays = False
                began = time.perf_counter()
                try:
                    async with asyncio.timeout(REQUEST_TIMEOUT):
                        wire = wire or await asyncio.open_connection(self._host, self._port)
                        stays = await self._ask(*wire, question)
                    self._latencies.append(time.perf_counter() - began)
                except _FAILURES as error:
                    self._errors.append(str(error) or type(error).__name__)
                wire = wire if stays else _closed(wire)
                self._on_answer()
        finally:
            _closed(wire)

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, question: Question
    ) -> bool:
        """Ask one question; say whether the connection stays.  A ValueError is a wrong answer."""
        form = urlencode({"s": question.sentence})
        writer.write(f"{self._head}{len(form)}\r\n\r\n{form}".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        size = head.partition("content-length:")[2].partition("\r\n")[0]
        body = await reader.readexactly(int(size))
        status = head.split(maxsplit=2)[1]
        if status != "200":
            raise ValueError(f"{status} {body.decode(errors='replace').strip()[:200]}")
        answers = json.loads(body)
        if answers != [question.answer]:
            raise ValueError(f"{question.sentence!r} got {answers}, not {question.answer!r}")
        return "connection: close" not in head


def _closed(wire: _Wire | None) -> _Wire | None:
    """Close a connection if there is one, and return what is left of it: None."""
    if wire:
        wire[1].close()
    return None
