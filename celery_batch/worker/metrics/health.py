"""

The health file of a worker, for container probes and systemd.

Rule 1: A beat comes from the worker's event loop, never from a thread beside it.  A loop that
    hangs must be seen to hang.  (Where the transport has no loop, Celery's timer is a thread.)
Rule 2: A broker that is away is no reason to start the worker anew: its models are warm, and
    it connects by itself.  It is not ready meanwhile, and it lives.
Rule 3: Nothing here may harm the worker: what cannot be written or sent is logged once.

Imported by probes, many times a minute: it knows the standard library alone.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

__all__ = ["EVERY", "VARIABLE", "HealthReport", "Sign"]

logger = logging.getLogger(__name__)

#: Names the file that is written.
VARIABLE = "CELERY_BATCH_PULSE"

#: Seconds from one beat to the next.
EVERY = 1.0

#: Seconds of silence after which a worker that was ready is not, and after which it hangs.
#: On the solo pool the loop waits for the model.
_NOT_READY_AFTER, _HANGS_AFTER = 10.0, 120.0

#: Microseconds, as systemd counts: no event loop beats while the worker connects or stops.
_WATCHED_NO_MORE = 7 * 24 * 3600 * 1_000_000


@dataclass(frozen=True, slots=True)
class Sign:
    """
    What a worker has last said of itself.

    Args:
        state: ``starting``, ``ready``, ``drained``, ``connecting`` or ``stopping``.
        pid: Of the worker's main process.
        at: Seconds on the machine's monotonic clock, the same for all of its processes.
    """

    state: str
    pid: int
    at: float

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Return what a file says; None where there is none, or another file."""
        try:
            state, pid, at = path.read_text().split()
            return cls(state, int(pid), float(at))
        except (OSError, ValueError):
            return None

    def write(self, path: Path) -> None:
        """Write it in one step, so that nobody reads half of it."""
        new = path.with_name(f"{path.name}.{self.pid}")
        new.write_text(f"{self.state} {self.pid} {self.at:.3f}\n")
        new.replace(path)

    def why_not_ready(self, now: float) -> str:
        """Return why no tasks should be expected to run here; the empty string if they do."""
        if self.state != "ready":
            return f"the worker is {self.state}"
        silent = now - self.at
        return f"its event loop is silent for {silent:.0f} s" if silent > _NOT_READY_AFTER else ""

    def why_not_alive(self, now: float) -> str:
        """Return why the worker should be started anew; the empty string if it should not."""
        silent = now - self.at
        if self.state in ("ready", "drained") and silent > _HANGS_AFTER:
            return f"its event loop hangs for {silent:.0f} s"
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return f"process {self.pid} has ended"
        except PermissionError:  # it is another user's, so it is there
            return ""
        return ""


class HealthReport:
    """
    Writes a worker's signs of life to a file, and tells systemd.

    Args:
        file: The file, or None to write none.
        notify: systemd's socket as its variable ``NOTIFY_SOCKET`` has it, or empty.
        watchdog: Microseconds of silence after which systemd kills the worker; 0 if it does not.
    """

    def __init__(self, file: Path | None, notify: str = "", watchdog: int = 0) -> None:
        self._file = file
        self._notify = f"\0{notify[1:]}" if notify.startswith("@") else notify
        self._watchdog = watchdog
        self._state = ""
        self._has_failed = False

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Self:
        """Return what the environment asks for."""
        file = environ.get(VARIABLE)
        watchdog = environ.get("WATCHDOG_USEC", "0")
        return cls(
            Path(file) if file else None,
            environ.get("NOTIFY_SOCKET", ""),
            int(watchdog) if watchdog.isdecimal() else 0,
        )

    @property
    def is_wanted(self) -> bool:
        """Whether there is anybody to tell."""
        return bool(self._file or self._notify)

    def beat(self, *, drained: bool = False) -> None:
        """
        Say that the event loop runs, and tasks with it.

        Args:
            drained: An operator has told the worker to take none.
        """
        state, news = "drained" if drained else "ready", []
        if self._state != state:
            news = ["READY=1", f"STATUS={'Drained: takes no' if drained else 'Takes'} tasks."]
            if self._watchdog:
                news.append(f"WATCHDOG_USEC={self._watchdog}")
        self._say(state, [*news, "WATCHDOG=1"])

    def tell(self, state: str) -> None:
        """
        Say that the worker is in a state in which its event loop does not run.

        Args:
            state: ``starting``, ``connecting`` or ``stopping``.
        """
        news = [f"STATUS=The worker is {state}."]
        if state == "stopping":
            news.append("STOPPING=1")
        if self._watchdog and state != "starting":
            news.append(f"WATCHDOG_USEC={_WATCHED_NO_MORE}")
        self._say(state, news)

    def _say(self, state: str, news: list[str]) -> None:
        self._state = state
        try:
            if self._file is not None:
                Sign(state, os.getpid(), time.monotonic()).write(self._file)
            if self._notify:
                self._send("\n".join(news).encode())
        except OSError as error:
            if not self._has_failed:
                logger.warning("Cannot tell that this worker lives: %s", error)
            self._has_failed = True

    def _send(self, message: bytes) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            # A manager that is slow to read must not hold up the event loop.
            sender.settimeout(0.0)
            with suppress(BlockingIOError):
                sender.sendto(message, self._notify)
