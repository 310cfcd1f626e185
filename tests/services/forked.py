"""
Workers and commands that are forked instead of executed, which costs a fifth of the time.

Most of what they do until they are ready is to import Celery, its libraries and our code.
`start` and `run` have a process at hand that has done so (see `tests.services.fork_server`).
With ``THOROUGH`` set they are executed, as users do.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

from celery_batch.processes import managed_process
from celery_batch.processes.managed_process import ManagedProcess

__all__ = ["begin", "run", "start"]

_ROOT = Path(__file__).parents[2]

#: Pools that have to be known before anything is imported.
_PATCHING_POOLS = {"gevent", "eventlet"}

#: Bytes of input that a command may be given.
_INPUT = 1 << 20


def start(
    command: Sequence[str],
    log: Path,
    *,
    env: Mapping[str, str],
    pass_fds: Sequence[int] = (),
    imports: Sequence[str] = (),
) -> ManagedProcess:
    """
    Start ``celery`` with a command line, or ``python -m``, forked if that makes no difference.

    Args:
        command: The command line.
        log: Where its output goes.
        env: Its environment.
        pass_fds: Descriptors that it has, under the same numbers.
        imports: Libraries that it and others import, which are forked with it.
    """
    patches = any(word.endswith(pool) for word in command for pool in _PATCHING_POOLS)
    if patches or _makes_a_difference(env):
        return ManagedProcess(command, log, env=env, pass_fds=pass_fds)
    return Forked(command, log, env, pass_fds, imports)


def _makes_a_difference(env: Mapping[str, str]) -> bool:
    """Say whether a program has to be executed in this environment: libraries change in some."""
    folders = (Path(folder) for folder in env.get("PYTHONPATH", "").split(os.pathsep) if folder)
    is_customized = any((folder / "sitecustomize.py").exists() for folder in folders)
    return "THOROUGH" in os.environ or "CHANGED" in env or is_customized


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    text: str = "",
    timeout: float = 60,
    largest: int | None = None,
    imports: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """
    Run a command of ``celery``, or ``python -c``, to its end, forked if that makes no difference.

    Args:
        command: The command line.
        env: Its environment.
        text: Its input.
        timeout: Seconds after which it is killed.
        largest: Bytes that a file of its may have.
        imports: Libraries that it and others import, which are forked with it.
    """
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        streams = {"output": output, "errors": errors}
        process = begin(command, env=env, text=text, **streams, largest=largest, imports=imports)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(command, code, output.read(), errors.read())


def begin(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    text: str = "",
    output: IO[str] | None = None,
    errors: IO[str] | None = None,
    largest: int | None = None,
    imports: Sequence[str] = (),
) -> Command | subprocess.Popen[bytes]:
    """
    Start a command of ``celery``, forked if that makes no difference.

    Args:
        command: The command line.
        env: Its environment.
        text: Its input.
        output: Where its output goes; by default nowhere.
        errors: The same for its errors.
        largest: Bytes that a file of its may have.
        imports: Libraries that it and others import, which are forked with it.
    """
    reads, writes = os.pipe()
    fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, _INPUT)
    os.write(writes, text.encode())
    os.close(writes)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, reads)
        nowhere = stack.enter_context(open(os.devnull, "w"))  # noqa: PTH123
        streams = [reads, *((each or nowhere).fileno() for each in (output, errors))]
        if not _makes_a_difference(env):
            return Command(command, env, streams, largest, imports)
        limit = resource.RLIM_INFINITY if largest is None else largest
        return subprocess.Popen(
            command,
            env={**env},
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),  # noqa: PLW1509
        )


class Forked(ManagedProcess):
    """
    A child that was not executed.

    Args:
        command: The command line.
        log: Where its output goes.
        env: Its environment.
        pass_fds: Descriptors that it has, under the same numbers.
        imports: Libraries to import before it is forked.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        env: Mapping[str, str],
        pass_fds: Sequence[int],
        imports: Sequence[str],
    ) -> None:
        self.name = log.stem
        self.log = log
        self._owner = os.getpid()
        request = {"command": [*command], "env": {**env}, "passed": [*pass_fds]}
        self._reaper = _Reaper({**request, "imports": [*imports]}, log)  # type: ignore[assignment]
        self._pipe = self._reaper.stdin  # type: ignore[assignment]
        managed_process._children.add(self)


class _Process:
    """
    As much of Popen as is used, for a process that is the fork server's child or grandchild.

    Args:
        request: What is to run.
        descriptors: Its streams.
    """

    def __init__(self, request: dict[str, Any], descriptors: Sequence[int]) -> None:
        request["folder"] = str(Path.cwd())
        self._hears, said = os.pipe()
        socket.send_fds(_fork_server(), [json.dumps(request).encode()], [*descriptors, said])
        os.close(said)
        self._words = b""
        self._ended = False
        self._listen(None, lines=1)
        self.pid = int(self._words.split()[0])

    def __del__(self) -> None:
        os.close(self._hears)

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


class _Reaper(_Process):
    """The process that a worker ends with."""

    def __init__(self, request: dict[str, Any], log: Path) -> None:
        reads, writes = os.pipe()
        with log.open("ab") as output:
            super().__init__(request, [reads, output.fileno(), *request["passed"]])
        os.close(reads)
        self.stdin = os.fdopen(writes, "wb", buffering=0)

    def __del__(self) -> None:
        super().__del__()
        self.stdin.close()


class Command(_Process):
    """
    A command that was not executed.

    Args:
        command: The command line.
        env: Its environment.
        streams: The descriptors of its input, its output and its errors.
        largest: Bytes that a file of its may have.
        imports: Libraries to import before it is forked.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        streams: Sequence[int],
        largest: int | None,
        imports: Sequence[str],
    ) -> None:
        request = {"command": [*command], "env": {**env}, "largest": largest}
        request["imports"] = [*imports]
        super().__init__(request, streams)

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it has not ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


@cache
def _fork_server() -> socket.socket:
    """Start the process that has imported Celery; it ends when our end of the line is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        fork_server = subprocess.Popen(
            [sys.executable, "-m", "tests.services.fork_server", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=_ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(_ROOT)},
        )
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    atexit.register(_part, ours, fork_server)
    return ours


def _part(line: socket.socket, fork_server: subprocess.Popen[bytes]) -> None:
    line.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        fork_server.wait(5)
