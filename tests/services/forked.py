"""
Workers that are forked instead of executed, which costs a third of the processor's time.

Most of what a worker does until it is ready is to import Celery and its libraries.
`start` has a process at hand that has done so (see `tests.services.mother`).
With ``THOROUGH`` set every worker is executed, as users do.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from celery_batch.processes import managed_process
from celery_batch.processes.managed_process import ManagedProcess

__all__ = ["start"]

_ROOT = Path(__file__).parents[2]

#: Pools that have to be known before anything is imported.
_PATCHING_POOLS = {"gevent", "eventlet"}


def start(command: Sequence[str], log: Path, *, env: Mapping[str, str]) -> ManagedProcess:
    """
    Start ``celery`` with a command line, forked if that makes no difference.

    Args:
        command: The command line.
        log: Where its output goes.
        env: Its environment.
    """
    if "THOROUGH" in os.environ or _PATCHING_POOLS.intersection(command):
        return ManagedProcess(command, log, env=env)
    return Forked(command, log, env)


class Forked(ManagedProcess):
    """
    A child that was not executed.

    Args:
        command: The command line.
        log: Where its output goes.
        env: Its environment.
    """

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self.name = log.stem
        self.log = log
        self._owner = os.getpid()
        self._reaper = _Reaper(command, log, env)  # type: ignore[assignment]
        self._pipe = self._reaper.stdin  # type: ignore[assignment]
        managed_process._children.add(self)


class _Reaper:
    """As much of Popen as a Child uses, for a process that is our mother's child."""

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        request = {"command": [*command], "env": {**env}, "folder": str(Path.cwd())}
        reads, writes = os.pipe()
        self._hears, said = os.pipe()
        with log.open("ab") as output:
            descriptors = [reads, output.fileno(), said]
            socket.send_fds(_mother(), [json.dumps(request).encode()], descriptors)
        os.close(reads)
        os.close(said)
        self.stdin = os.fdopen(writes, "wb", buffering=0)
        self._words = b""
        self._ended = False
        self._listen(None, lines=1)
        self.pid = int(self._words.split()[0])

    def __del__(self) -> None:
        os.close(self._hears)
        self.stdin.close()

    def poll(self) -> int | None:
        """Return its exit code once it has ended."""
        self._listen(0, lines=3)  # to its end, which comes after the exit code
        if not self._ended:
            return None
        _, *code = self._words.split()
        return int(code[0]) if code else -signal.SIGKILL

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for its end, or raise what Popen raises."""
        self._listen(timeout, lines=3)
        if not self._ended:
            raise subprocess.TimeoutExpired(["celery"], timeout or 0)
        return self.poll()

    def _listen(self, seconds: float | None, *, lines: int) -> None:
        """Read what it says: its process id, its exit code and then, when it is gone, nothing."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self._ended and self._words.count(b"\n") < lines:
            left = None if deadline is None else max(0, deadline - time.monotonic())
            if not select.select([self._hears], [], [], left)[0]:
                return
            words = os.read(self._hears, 64)
            self._words += words
            self._ended = not words


@cache
def _mother() -> socket.socket:
    """Start the process that has imported Celery; it ends when our end of the line is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        mother = subprocess.Popen(
            [sys.executable, "-m", "tests.services.mother", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=_ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(_ROOT)},
        )
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    atexit.register(_part, ours, mother)
    return ours


def _part(line: socket.socket, mother: subprocess.Popen[bytes]) -> None:
    line.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        mother.wait(5)
