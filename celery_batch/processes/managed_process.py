"""Server processes that end with the process that started them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Self, cast

from celery_batch.errors import BatchError
from celery_batch.processes import reaper

__all__ = ["ManagedProcess", "ServerFailed", "end_of", "signal_of", "wait_until"]

#: Seconds between two calls of ``ready``: the first pause, and the longest.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.25


class ServerFailed(BatchError):
    """A server did not start, or ended while it was needed."""

    status_code = 503


#: What a shell adds to a signal's number, as reapers do.
_SIGNALLED = 128


def signal_of(code: int) -> str:
    """Return which signal has ended a process, as ``"killed by SIGKILL"``; empty if none has."""
    number = -code if code < 0 else code - _SIGNALLED  # of the reaper, or of its server
    try:
        return f"killed by {signal.Signals(number).name}"
    except ValueError:
        return ""


def end_of(log: Path, size: int, begin: int = 0) -> str:
    """Return at most so many bytes at the end of a log, none of those before ``begin``."""
    try:
        with log.open("rb") as file:
            file.seek(max(begin, file.seek(0, os.SEEK_END) - size))
            return file.read().decode(errors="replace")
    except FileNotFoundError:  # it was removed
        return ""


class ManagedProcess:
    """A server process that ends when this process ends, killed or not."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,  # for its output; the stem is the server's name
        *,
        env: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        folder: Path | None = None,  # removed if this process is killed, else by the caller
        orphan_grace: float = reaper.ORPHAN_GRACE,  # to stop by itself if this process is killed
    ) -> None:
        self.name = log.stem
        self.log = log
        self._owner = os.getpid()
        options = [str(folder or ""), str(orphan_grace)]
        with log.open("ab") as output:
            self._reaper = subprocess.Popen(  # noqa: S603 (the caller's own command)
                [sys.executable, "-I", "-S", reaper.__file__, *options, *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                bufsize=0,
                env=env,
                pass_fds=pass_fds,
                start_new_session=True,
            )
        #: Its reading end is the reaper's; this end only this process has, and no fork of it.
        self._pipe: IO[bytes] = cast("IO[bytes]", self._reaper.stdin)
        _children.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "runs" if self.exit_code is None else f"ended with {self.exit_code}"
        return f"<ManagedProcess {self.name} {state}>"

    @property
    def pid(self) -> int:
        """The reaper's process id; the server is its child."""
        return self._reaper.pid

    @property
    def exit_code(self) -> int | None:
        """None while the server runs; then its exit code, 128 + n for signal n."""
        return self._reaper.poll()

    def check(self) -> None:
        """Raise ServerFailed, with the last lines of the log, if the server has ended."""
        if self.exit_code is not None:
            raise ServerFailed(self.how_it_ended())

    def how_it_ended(self) -> str:
        """Return its signal or exit code and the last lines of its log, as a message."""
        end = signal_of(self.exit_code or 0)
        how = f"was {end}" if end else f"ended with exit code {self.exit_code}"
        return f"{self.name} {how}\n{self.tail()}"

    def tail(self, lines: int = 20) -> str:
        """Return the last lines of the log, under a line that names it."""
        last = end_of(self.log, 200 * lines).splitlines()[-lines:] or ["(nothing)"]
        return "\n".join([f"--- {self.name}: the end of {self.log}", *last])

    def wait(self, seconds: float) -> bool:
        """Wait for the server to end, this many seconds at most; return whether it has."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._reaper.wait(seconds)
        return self.exit_code is not None

    def terminate(self, grace: float) -> None:
        """Ask the server to end, and do not wait for it; it is killed after `grace` seconds."""
        if os.getpid() != self._owner:
            return
        # The reaper may have ended with its server, and so has its end of the pipe.
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._pipe.write(f"{grace}\n".encode())

    def stop(self, grace: float = 5.0) -> None:
        """End the server and all it started, in `grace` seconds; return when they are gone."""
        if os.getpid() != self._owner:
            return
        self.terminate(grace)
        try:
            self._await_end()
        finally:
            self._pipe.close()

    def _await_end(self) -> None:
        # Not by `wait` of subprocess, which may never return: an exception that a signal raised
        # within such a call can have left the lock held that it takes.
        if self.exit_code is not None:
            return
        with contextlib.suppress(ProcessLookupError):  # another thread has waited for it
            ended = os.pidfd_open(self.pid)
            try:
                poller = select.poll()
                poller.register(ended, select.POLLIN)
                poller.poll()
            finally:
                os.close(ended)
        self._reaper.poll()


_children: weakref.WeakSet[ManagedProcess] = weakref.WeakSet()


def _after_fork() -> None:
    for child in list(_children):
        child._pipe.close()  # noqa: SLF001 (same module; it would outlive the owner)


# Descriptors close on exec by themselves; a fork without exec keeps them.
os.register_at_fork(after_in_child=_after_fork)


def wait_until(
    ready: Callable[[], str], children: Sequence[ManagedProcess], *, what: str, timeout: float
) -> None:
    """Wait until something is ready, as long as its servers live; `ready` returns why it is not."""
    deadline = time.monotonic() + timeout
    pause = _FIRST_PAUSE
    while reason := ready():
        for child in children:
            child.check()
        if time.monotonic() > deadline:
            tails = [child.tail() for child in children]
            message = f"{what} not ready after {timeout:g} s: {reason}"
            raise ServerFailed("\n".join([message, *tails]))
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
