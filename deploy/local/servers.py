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

from celery_batch.cli.child import Child, ServerFailed, wait_until
from celery_batch.cli.redis_server import RedisServer
from deploy.local.browser import why_not

__all__ = ["Servers"]

#: Seconds a part may take to get ready; a worker loads its model first, on a cold disk.
READY_TIMEOUT = 180.0

#: Seconds a part gets to finish what it does when it is stopped.
STOP_GRACE = 10.0

#: Seconds the web server gives a request, unless the environment says otherwise: one model
#: call each for a crowd of clients takes long on a slow machine, and is to be measured.
WEB_TIMEOUT = "60"

#: Requests the web server works on at once, beside those that wait for the model.
WEB_THREADS = 64

#: Seconds between the first sign of a server's end, a lost connection, and the end.
_LAST_MOMENT = 0.3

_CELERY = str(Path(sysconfig.get_path("scripts")) / "celery")


class Servers:
    """
    The servers of the compose file, without Docker, ready when `start` returns.

    Every one of them ends with this process, however that ends.  Logs lie in a
    private folder: removed when all went well, kept and named by a note on the
    exception when something failed.

    Args:
        web_port: The web server's port if it is free, else any free one.
        flower_port: The same for Flower; None for no Flower.
    """

    def __init__(self, *, web_port: int = 0, flower_port: int | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="celery-batch-"))
        self.redis = RedisServer(self.folder / "redis")
        self.children: list[Child] = []
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
            self._name_the_dead(failure)
        self._running.close()
        if failure and any(self.folder.rglob("*.log")):
            failure.add_note(f"The logs are kept in {self.folder}")
        else:
            shutil.rmtree(self.folder)

    def start(self, say: Callable[[str], object] = lambda _line: None) -> None:
        """
        Start everything and return when it answers.

        Args:
            say: Told about each part as it gets ready.

        Raises:
            ConfigurationError: There is no Redis on this machine.
            ServerFailed: A part ended or did not get ready; with its log's last lines.
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

    def _name_the_dead(self, error: Exception) -> None:
        """Add to an error, where it does not say so, that a server has ended."""
        if isinstance(error, ServerFailed):
            return
        for child in self.children:
            # What the error tells may be the first sign of an end that takes a moment more.
            if child.wait(_LAST_MOMENT):
                error.add_note(child.how_it_ended())

    def _run(
        self, name: str, command: Sequence[str], pass_fds: Sequence[int] = (), **more: str
    ) -> None:
        env = {
            **more,
            "WEBAPP_TIMEOUT": WEB_TIMEOUT,
            # Scripts may read what Flower shows: it listens on loopback, and serves examples.
            "FLOWER_UNAUTHENTICATED_API": "true",
            **os.environ,
            "CELERY_BROKER_URL": self.redis.url,
            "CELERY_RESULT_BACKEND": self.redis.url,
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(self.folder),  # a killed worker leaves its temporary files
        }
        log = self.folder / f"{name}.log"
        child = Child(command, log, env=env, pass_fds=pass_fds, folder=self.folder)
        self.children.append(child)
        self._running.callback(child.stop, STOP_GRACE)

    def _run_web(self) -> None:
        """Start the web server on a port that we bind and it inherits: nobody can take it."""
        with _bound(self._web_port) as listener:
            self.web_url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            options = [
                f"--bind=fd://{listener.fileno()}",
                "--worker-class=webapp.parking.ParkingWorker",
                "--workers=1",
                f"--threads={WEB_THREADS}",
                "--no-control-socket",  # it would lie in the home folder
            ]
            command = [sys.executable, "-m", "gunicorn", *options, "webapp.flask_app:app"]
            # Where all of its processes count, should it have several.
            counts = str(self.folder / "counts")
            self._run("web", command, [listener.fileno()], PROMETHEUS_MULTIPROC_DIR=counts)

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
