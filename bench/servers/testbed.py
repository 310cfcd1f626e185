"""The servers of a measurement: one Redis, and each measured system in a process of its own."""

from __future__ import annotations

import itertools
import json
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Self

import psutil

from bench.servers.peers import peers_python
from celery_batch.processes.redis_server import RedisServer

__all__ = ["OURS", "SystemProcess", "Testbed", "cpu_of", "free_port", "testbed"]

_ROOT = Path(__file__).parents[2]

#: Who runs in our environment; all others in the peers'.
OURS = frozenset(
    {"pure", "ours", "stock client", "our ThreadedStreamer", "our Streamer", "our RedisStreamer"}
)

#: Seconds after which a system that says nothing is given up.
_TIMEOUT = 600.0

#: Databases of a Redis server unless it is told otherwise.
_DATABASES = 16


class SystemProcess:
    """One measured system, with its workers as child processes."""

    def __init__(self, kind: str, command: list[str], env: dict[str, str]) -> None:
        self.kind = kind
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as we
        self._process = subprocess.Popen(
            command,
            cwd=_ROOT,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            bufsize=1,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - for the type checker
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def ready(self) -> None:
        """Wait until it and its workers are ready."""
        self._receive()

    def ask(self, measurement: str, **options: Any) -> dict[str, Any]:
        """Run a measurement in it; return the results, with the CPU seconds of its workers."""
        assert self._process.stdin is not None  # noqa: S101 - for the type checker
        before = self._cpu()
        self._process.stdin.write(json.dumps({"measurement": measurement, **options}) + "\n")
        return {**self._receive(), "worker_cpu": self._cpu() - before}

    def workers(self) -> list[psutil.Process]:
        """Return all processes below the system's own."""
        return psutil.Process(self._process.pid).children(recursive=True)

    def _cpu(self) -> float:
        return sum(cpu_of(process) for process in self.workers())

    def _receive(self) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=_TIMEOUT)
        except queue.Empty:
            line = ""
        answer: dict[str, Any] = json.loads(line or '{"error": "it says nothing"}')
        if "error" in answer:
            self._errors.seek(0)
            tail = self._errors.read().decode(errors="replace")[-4000:]
            raise RuntimeError(f"{self.kind}: {answer['error']}\n{tail}")
        return answer

    def stop(self) -> None:
        """End it, and its workers with it."""
        assert self._process.stdin is not None  # noqa: S101 - for the type checker
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


def cpu_of(process: psutil.Process) -> float:
    """Return the seconds of CPU a process has used, its ended children left out."""
    # /proc counts in hundredths of a second.  The process's own clock, whose number the
    # manual page of clock_getcpuclockid explains, counts in nanoseconds.
    try:
        return time.clock_gettime((~process.pid << 3) | 2)
    except OSError:  # it has ended
        return 0.0


class Testbed:
    """A Redis, and systems that share it, each in a database of its own."""

    def __init__(self, redis: RedisServer) -> None:
        self.redis = redis
        self._databases = itertools.cycle(range(1, _DATABASES))

    def url(self) -> str:
        """Return the address of the next database."""
        return f"{self.redis.url.removesuffix('/0')}/{next(self._databases)}"

    @contextmanager
    def systems(
        self, kinds: list[str], model: str, workers: int = 1, **env: str
    ) -> Iterator[dict[str, SystemProcess]]:
        """Start systems side by side, and yield them by name when all are ready."""
        with ExitStack() as exits:
            systems = {}
            for kind in kinds:
                python = sys.executable if kind in OURS else peers_python()
                command = [python, "-m", "bench.systems", kind, model, str(workers), self.url()]
                inherited = {**os.environ, "PYTHONPATH": str(_ROOT), **env}
                systems[kind] = exits.enter_context(SystemProcess(kind, command, inherited))
            for system in systems.values():
                system.ready()
            yield systems


def free_port() -> int:
    """Return a port of this machine on which nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def testbed() -> Iterator[Testbed]:
    """Run a Redis for some measurements, on TCP, which all systems can use."""
    with RedisServer(port=free_port()) as redis:
        yield Testbed(redis)
