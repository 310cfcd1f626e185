"""The pressed service's contract, its doors, and clients that do not behave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from web_pressed_tasks import answer, answer_one

from webapp.contract import Contract
from webapp.settings import Settings

#: How each door is served; `{bind}` is the descriptor of its socket.
COMMANDS = {
    "gthread": (
        *("gunicorn", "--worker-class=gthread", "--threads=64", "--no-control-socket"),
        *("--bind=fd://{bind}", "--graceful-timeout=3", "webapp.flask_app:app"),
    ),
    "parking": (
        *("gunicorn", "--worker-class=webapp.parking.ParkingWorker", "--threads=8"),
        *("--bind=fd://{bind}", "--graceful-timeout=3", "--no-control-socket"),
        "webapp.flask_app:app",
    ),
    "gevent": (
        *("gunicorn", "--worker-class=gevent", "--no-control-socket"),
        *("--bind=fd://{bind}", "--graceful-timeout=3", "webapp.flask_app:app"),
    ),
    "uvicorn": (
        *("uvicorn", "--fd={bind}", "--log-level=warning", "--timeout-graceful-shutdown=3"),
        "webapp.asgi_app:app",
    ),
}


def contract() -> Contract:
    """Return it, with settings from the environment."""
    return Contract(answer, answer_one, Settings.from_environ(os.environ))


def command(kind: str, bind: int) -> list[str]:
    """Return the command line of a door."""
    return [sys.executable, "-m", *(word.format(bind=bind) for word in COMMANDS[kind])]


def request(*inputs: str, **headers: str) -> bytes:
    """Return the bytes of a POST to /predict."""
    body = json.dumps({"inputs": inputs}).encode()
    more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = (
        "POST /predict HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
        f"{more}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Load:
    """What clients have met."""

    counts: Counter[int] = field(default_factory=Counter)
    seconds: dict[int, list[float]] = field(default_factory=dict)
    unhelpful: int = 0
    began: float = field(default_factory=time.monotonic)
    last: float = 0.0

    def note(self, status: int, took: float, headers: dict[str, str]) -> None:
        """Take an answer down."""
        self.counts[status] += 1
        self.seconds.setdefault(status, []).append(took)
        self.unhelpful += status in {429, 503, 504} and "retry-after" not in headers
        self.last = time.monotonic()

    def __str__(self) -> str:
        return "; ".join(
            f"{count} x {status} in {1000 * self.quantile(status, 0.5):.1f} ms,"
            f" p99 {1000 * self.quantile(status, 0.99):.1f} ms"
            for status, count in self.counts.items()
        )

    def goodput(self) -> float:
        """Return answers a second, until the last came."""
        return self.counts[200] / (self.last - self.began)

    def quantile(self, status: int, share: float) -> float:
        """Return the seconds that a share of the answers of a kind took at most."""
        taken = sorted(self.seconds[status])
        return taken[min(int(len(taken) * share), len(taken) - 1)]


class Clients:
    """
    Many clients of one door, on keep-alive connections.

    Args:
        port: The door's.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[Line] = []
        self.load = Load()

    async def ask(self, message: bytes) -> int:
        """Send one request and return its status, 0 if the connection was lost."""
        began = time.monotonic()
        status, headers = 0, {}
        while self._idle and not status:  # the server may have closed it in the meantime
            status, headers = await self._ask(self._idle.pop(), message)
        if not status:
            with contextlib.suppress(OSError):
                line = await asyncio.open_connection(port=self._port)
                status, headers = await self._ask(line, message)
        self.load.note(status, time.monotonic() - began, headers)
        return status

    async def _ask(self, line: Line, message: bytes) -> tuple[int, dict[str, str]]:
        reader, writer = line
        try:
            writer.write(message)
            status, headers, _ = await read_answer(reader)
        except (OSError, EOFError):
            status, headers = 0, {"connection": "close"}
        if headers.get("connection", "").lower() == "close":
            await closed(writer)
        else:
            self._idle.append(line)
        return status, headers

    async def open_loop(self, rate: float, seconds: float) -> Load:
        """Ask so many times a second, however long the answers take."""
        self.load = Load()
        asked = []
        for number in range(int(rate * seconds)):
            pause = self.load.began + number / rate - time.monotonic()
            await asyncio.sleep(max(pause, 0))
            asked.append(asyncio.ensure_future(self.ask(request(f"item {number}"))))
        await asyncio.gather(*asked)
        return await self._done()

    async def closed_loop(self, clients: int, requests: int) -> Load:
        """Have clients ask one after the other, until all requests are made."""
        self.load = Load()
        numbers = iter(range(requests))

        async def client() -> None:
            """Ask again and again."""
            for number in numbers:
                await self.ask(request(f"item {number}"))

        await asyncio.gather(*(client() for _ in range(clients)))
        return await self._done()

    async def _done(self) -> Load:
        while self._idle:
            await closed(self._idle.pop()[1])
        return self.load


async def closed(writer: asyncio.StreamWriter) -> None:
    """Close a connection, lost or not."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """Read one answer: its status, headers in lower case, and body."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return int(first.split()[1]), headers, body
