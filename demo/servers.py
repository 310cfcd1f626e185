"""Redis, a worker, the web server and Flower, for as long as this process lives."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from celery_batch.processes.managed_process import ManagedProcess, ServerFailed, wait_until
from celery_batch.processes.redis_server import RedisServer
from demo.http_client import why_not

__all__ = ["SENTENCES", "Servers"]

#: What the demo asks, and what the page offers.
SENTENCES = [
    "twinkle twinkle [MASK] star.",
    "Happy birthday to [MASK].",
    "the answer to life, the [MASK], and everything.",
]

#: Seconds a part may take to get ready; a worker loads its model first, on a cold disk.
READY_TIMEOUT = 180.0

#: Seconds a part gets to finish what it does when it is stopped.
STOP_GRACE = 10.0

#: Default of WEBAPP_TIMEOUT, in seconds: 128 clients that are served one by one wait long on a
#: slow machine, and the demo measures that.
WEB_TIMEOUT = "60"

#: Seconds from a lost connection to a server until that server's process has ended.
_END_DELAY = 0.3

_CELERY = str(Path(sysconfig.get_path("scripts")) / "celery")


class Servers:
    """
    The servers of the compose file, without Docker, ready when `start` returns.

    All of them end with this process, however that ends.  Their logs are in a private
    folder, which is removed at the end; after an error it is kept, and a note on the
    exception names it.

    Args:
        web_port: The web server's port if it is free, else any free one.
        flower_port: The same for Flower; None for no Flower.
    """

    def __init__(self, *, web_port: int = 0, flower_port: int | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="celery-batch-"))
        self.redis = RedisServer(self.folder / "redis")
        self.children: list[ManagedProcess] = []
        self.web_url = ""
        self.flower_url = ""
        self._web_port = web_port
        self._flower_port = flower_port
        self._running = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, _trace: object) -> None:
        # An interruption is no failure: it is not an Exception.
        failure = error if isinstance(error, Exception) else None
        if failure:
            self._note_ended_servers(failure)
        self._running.close()
        if failure and any(self.folder.rglob("*.log")):
            failure.add_note(f"The logs are kept in {self.folder}")
        else:
            shutil.rmtree(self.folder)

    def start(self, say: Callable[[str], object] = lambda _line: None) -> None:
        """
        Start everything and return when it answers.

        Raises:
            ConfigurationError: There is no Redis on this machine.
            ServerFailed: A server ended or did not get ready; with its log's last lines.
        """
        began = time.monotonic()

        def ready(part: str, where: str) -> None:
            say(f"{part} is ready after {time.monotonic() - began:.1f} s: {where}")

        self._running.enter_context(self.redis)
        self.children.append(self.redis.child)
        ready("Redis", self.redis.url)
        self._run("worker", [_CELERY, "-A", "workers", "worker", "--concurrency=1"])
        self._run_web()
        if self._flower_port is not None:
            self._run_flower(self._flower_port)
        self._wait("web", lambda: why_not(f"{self.web_url}/healthz"))
        ready("Web server", self.web_url)
        self._wait("worker", lambda: why_not(f"{self.web_url}/readyz"))
        ready("Worker", "celery -A workers worker --concurrency=1")
        if self._flower_port is not None:
            self._wait("flower", self._why_no_flower)
            ready("Flower", self.flower_url)

    def check(self) -> None:
        """
        Do nothing while all servers run.

        Raises:
            ServerFailed: One has ended; with its log's last lines.
        """
        for child in self.children:
            child.check()

    def tail(self, name: str) -> str:
        """Return the last lines of a server's log."""
        return next(child.tail() for child in self.children if child.name == name)

    def _note_ended_servers(self, error: Exception) -> None:
        """Add to an error which servers have ended, where it does not say so itself."""
        if isinstance(error, ServerFailed):
            return
        for child in self.children:
            # The error may be the first sign of an end that takes a moment more.
            if child.wait(_END_DELAY):
                error.add_note(child.how_it_ended())

    def _run(self, name: str, command: Sequence[str], pass_fds: Sequence[int] = ()) -> None:
        env = {
            "WEBAPP_TIMEOUT": WEB_TIMEOUT,
            "WEBAPP_EXAMPLES": "|".join(SENTENCES),
            # For scripts: it listens on loopback and shows example data.
            "FLOWER_UNAUTHENTICATED_API": "true",
            **os.environ,
            "CELERY_BROKER_URL": self.redis.url,
            "CELERY_RESULT_BACKEND": self.redis.url,
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(self.folder),  # a killed worker leaves its temporary files
        }
        log = self.folder / f"{name}.log"
        child = ManagedProcess(command, log, env=env, pass_fds=pass_fds, folder=self.folder)
        self.children.append(child)
        self._running.callback(child.stop, STOP_GRACE)

    def _run_web(self) -> None:
        """Start the web server on a socket that we bind and it inherits."""
        with _bound(self._web_port) as listener:
            # Connections inherit it.  uvicorn takes an inherited socket for a Unix one, for which
            # asyncio does not set it, and each answer would wait 40 ms for a delayed ACK.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.web_url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            options = [f"--fd={listener.fileno()}", "--no-access-log"]
            command = [sys.executable, "-m", "uvicorn", "webapp.fastapi_app:app", *options]
            self._run("web", command, [listener.fileno()])

    def _run_flower(self, wanted: int) -> None:
        """Start Flower on the wanted port if it is free, else on one it finds by itself."""
        with _bound(wanted) as probe:
            port = wanted if probe.getsockname()[1] == wanted else 0
        options = ["--address=127.0.0.1", f"--port={port}"]
        self._run("flower", [_CELERY, "-A", "workers", "flower", *options])

    def _why_no_flower(self) -> str:
        """Read in its log where Flower listens, then ask there."""
        visit = re.search(r"Visit me at (http://\S+)", (self.folder / "flower.log").read_text())
        if visit is None:
            return "it has not said where it listens"
        self.flower_url = visit[1].rstrip("/")
        return why_not(f"{self.flower_url}/healthcheck")

    def _wait(self, what: str, ready: Callable[[], str]) -> None:
        wait_until(ready, self.children, what=what, timeout=READY_TIMEOUT)


def _bound(port: int) -> socket.socket:
    """Return a socket on loopback at this port, or at a free one where it is taken."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError:
        listener.bind(("127.0.0.1", 0))
    return listener
