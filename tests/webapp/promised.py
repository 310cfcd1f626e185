"""The web apps on servers of their own, and many clients of theirs."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import redis
from celery import Celery

from celery_batch.processes.managed_process import ManagedProcess, wait_until
from celery_batch.processes.redis_server import RedisServer
from tests.services.forked import start
from tests.services.servers.ports import quiet_port
from tests.services.setup import CELERY, ROOT
from tests.webapp.promised_tasks import GO, SEEN

#: Seconds that anything may take on a slow machine.
SOON = 60.0

WORKER = "promised@localhost"

#: Without the second that a worker spends looking for neighbours.
_QUICK = ("--without-mingle", "--without-gossip")

#: Longer than any test keeps a connection idle: a server that closes it may cross a request.
_KEEP_ALIVE = 300

_GUNICORN = (
    "gunicorn",
    "--no-control-socket",
    "--graceful-timeout=1",
    "--bind=127.0.0.1:{port}",
    f"--keep-alive={_KEEP_ALIVE}",
)

_UVICORN = (
    "uvicorn",
    "--port={port}",
    "--log-level=warning",
    f"--timeout-keep-alive={_KEEP_ALIVE}",
)

#: How each app is served.
COMMANDS = {
    "fastapi": (*_UVICORN, "webapp.fastapi_app:app"),
    "flask": (*_GUNICORN, "--threads=64", "webapp.flask_app:app"),
    "flask-gevent": (*_GUNICORN, "--worker-class=gevent", "webapp.flask_app:app"),
    "django": (*_GUNICORN, "--threads=64", "webapp.django_site.wsgi"),
}


class Setup:
    """
    A Redis, a worker, and the web apps, each started when it is first asked for.

    Args:
        folder: Of the Redis, with a short path.
        logs: The folder of the others' logs.
    """

    def __init__(self, folder: Path, logs: Path) -> None:
        self._running = ExitStack()
        self._logs = logs
        self.redis = self._running.enter_context(RedisServer(folder, appendonly=True))
        self.client = redis.Redis(
            unix_socket_path=str(folder / "redis.sock"), decode_responses=True
        )
        self._control = Celery("control", broker=self.redis.url, set_as_current=False)
        self._worker: ManagedProcess | None = None
        self._servers: dict[str, Server] = {}

    def close(self) -> None:
        """End all that runs."""
        self._control.close()
        self._running.close()
        self.client.close()

    @property
    def environment(self) -> dict[str, str]:
        """The environment of workers and web servers."""
        tasks = "tests.webapp.promised_tasks"
        return {
            **os.environ,
            "CELERY_BROKER_URL": self.redis.url,
            "CELERY_RESULT_BACKEND": self.redis.url,
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "WEBAPP_TASK": f"{tasks}:answer",
            "WEBAPP_NAIVE_TASK": f"{tasks}:quick",
            "WEBAPP_IMAGE_TASK": "",
        }

    @property
    def worker(self) -> ManagedProcess:
        """The worker, with one process in its pool, started again if it has ended."""
        if self._worker is None or self._worker.exit_code is not None:
            app = self.environment["WEBAPP_TASK"].partition(":")[0]
            line = [CELERY, "-A", app, "worker", "-n", WORKER, "-c1", "-l", "INFO", *_QUICK]
            log = self._logs / f"worker-{time.monotonic_ns()}.log"
            self._worker = self._running.enter_context(start(line, log, env=self.environment))
            self.until(lambda: " ready." in log.read_text(), "a worker", self._worker)
        return self._worker

    def kill_worker(self) -> None:
        """Kill the worker and its pool as the kernel does, without a word to them."""
        worker = self.worker  # which starts another where it has ended
        for process in psutil.Process(worker.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it ended with the one before
                process.kill()
        worker.wait(SOON)

    def server(self, kind: str) -> Server:
        """Return a web app's server, ready."""
        if kind not in self._servers:
            port = quiet_port()
            words = [word.format(port=port) for word in COMMANDS[kind]]
            log = self._logs / f"{kind}.log"
            child = ManagedProcess([sys.executable, "-m", *words], log, env=self.environment)
            server = Server(port, self._running.enter_context(child))
            self.until(lambda: server.get("/healthz") == 200, kind, child)
            self._servers[kind] = server
        return self._servers[kind]

    def seen(self) -> list[str]:
        """Return what the model has seen."""
        return self.client.lrange(SEEN, 0, -1)

    def queued(self) -> int:
        """Return how many messages wait in the queue."""
        return self.client.llen("promised")

    def ask(self, command: str) -> Any:
        """Return the worker's answer to a control command."""
        broadcast = self._control.control.broadcast
        answers = broadcast(command, reply=True, destination=[WORKER], timeout=SOON, limit=1)
        return answers[0][WORKER]

    def let_go(self) -> None:
        """Have the model answer the batch with which it waits."""
        self.client.rpush(GO, "go")

    def until(self, ready: Callable[[], Any], what: str, *children: ManagedProcess) -> None:
        """Ask until something is so."""
        wait_until(lambda: "" if ready() else "not yet", children, what=what, timeout=SOON)


@dataclass(frozen=True)
class Answer:
    """A request's answer; its status is 0 where the connection was lost."""

    status: int
    seconds: float
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class Load:
    """
    What many clients were answered.

    Args:
        answers: In any order.
        seconds: From the first request to the last answer.
    """

    def __init__(self, answers: list[Answer], seconds: float) -> None:
        self.answers = answers
        self.seconds = seconds
        self.counts = Counter(each.status for each in answers)
        self.goodput = self.counts[200] / seconds
        self.slowest = max(each.seconds for each in answers)
        #: Whether each that may succeed later says when.
        self.is_helpful = all(
            "retry-after" in each.headers for each in answers if each.status in {429, 503, 504}
        )

    def median(self, status: int) -> float:
        """Return the seconds in which half of the answers of a status came."""
        return median(each.seconds for each in self.answers if each.status == status)

    def __str__(self) -> str:
        said = [f"{n} x {s} ({self.median(s) * 1e3:.1f} ms)" for s, n in self.counts.items()]
        return f"{self.goodput:.1f}/s, {self.slowest:.2f} s at most; {', '.join(said)}"


@dataclass
class Server:
    """
    A web server, and its clients.

    Args:
        port: It listens there on loopback.
        child: Its process.
    """

    port: int
    child: ManagedProcess

    def get(self, path: str) -> int:
        """Return the status of a GET."""
        return asyncio.run(self.ask(f"GET {path} HTTP/1.1\r\nHost: test\r\n\r\n".encode())).status

    def predict(self, *inputs: str, timeout: float = SOON) -> Answer:
        """Ask for some inputs' outputs."""
        return asyncio.run(self.ask(request(*inputs, timeout=timeout)))

    async def ask(self, message: bytes) -> Answer:
        """Send a request on a connection of its own."""
        clients = Clients(self.port)
        try:
            return await clients.ask(message)
        finally:
            await clients.close()

    @contextmanager
    def gone(self, message: bytes) -> Iterator[None]:
        """Send a request, and disconnect at the end of the context."""
        with socket.create_connection(("127.0.0.1", self.port)) as client:
            client.sendall(message)
            yield

    async def steady(self, rate: float, seconds: float, *, deadline: float = SOON) -> Load:
        """Ask so many times a second, however long the answers take."""
        clients, asking = Clients(self.port), []
        began = time.monotonic()
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(began + number / rate - time.monotonic(), 0.0))
            message = request(f"item {number}", timeout=deadline)
            asking.append(asyncio.ensure_future(clients.ask(message)))
        answers = await asyncio.gather(*asking)
        await clients.close()
        return Load(answers, time.monotonic() - began)

    def in_turn(self, clients: int, messages: list[bytes]) -> Load:
        """Have some clients send requests, each its next one when it has its answer."""
        return asyncio.run(self._in_turn(clients, messages))

    async def _in_turn(self, count: int, messages: list[bytes]) -> Load:
        clients, left = Clients(self.port), iter(messages)
        began = time.monotonic()

        async def client() -> list[Answer]:
            return [await clients.ask(message) for message in left]

        answers = await asyncio.gather(*(client() for _ in range(count)))
        await clients.close()
        return Load([*chain(*answers)], time.monotonic() - began)


class Clients:
    """
    Clients that keep their connections.

    Args:
        port: The server's.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def close(self) -> None:
        """Close all connections."""
        while self._idle:
            await _closed(self._idle.pop()[1])

    async def ask(self, message: bytes) -> Answer:
        """Send a request, and return its answer."""
        began = time.monotonic()
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof():
                break
            await _closed(writer)
        else:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            except OSError:
                return Answer(0, time.monotonic() - began)
        try:
            writer.write(message)
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.strip().split("\r\n")
            pairs = (line.partition(":") for line in lines)
            headers = {name.lower(): value.strip() for name, _, value in pairs}
            if headers.get("transfer-encoding") == "chunked":
                body = await reader.readuntil(b"\r\n0\r\n\r\n")
            else:
                body = await reader.readexactly(int(headers.get("content-length", 0)))
        except (OSError, EOFError):
            await _closed(writer)
            return Answer(0, time.monotonic() - began)
        if headers.get("connection", "").lower() == "close":
            await _closed(writer)
        else:
            self._idle.append((reader, writer))
        return Answer(int(first.split()[1]), time.monotonic() - began, headers, body)


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


def request(*inputs: str, timeout: float = SOON) -> bytes:
    """Return a request for some inputs' outputs."""
    return _post("/predict", "application/json", json.dumps({"inputs": inputs}), timeout)


def quick_request(text: str) -> bytes:
    """Return a request of the task that takes no time."""
    return _post("/naive", "application/x-www-form-urlencoded", f"s={text}", SOON)


def _post(path: str, kind: str, body: str, timeout: float) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: {kind}\r\n"
        f"X-Timeout: {timeout}\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    ).encode()
