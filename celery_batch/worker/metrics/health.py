"""
The health file of a worker, for container probes and systemd.

A beat comes from the worker's event loop, the first as that starts, and never from a thread
beside it, so that a hanging loop is noticed.  (Where the transport has no loop, Celery's
timer is a thread.)  A broker that cannot be reached is no reason to restart the worker: its
models are warm, and it connects by itself.  It is alive but not ready meanwhile.  Errors here
are logged once.

Probes import this module many times a minute: it uses only the standard library.
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

__all__ = ["EVERY", "VARIABLE", "HealthReport", "HealthState"]

logger = logging.getLogger(__name__)

#: The environment variable with the path of the file.
VARIABLE = "CELERY_BATCH_HEALTH_FILE"

#: Seconds from one beat to the next.
EVERY = 1.0

#: Seconds of silence after which a worker that was ready is not, and after which it hangs.
#: On the solo pool the loop waits for the model.
_NOT_READY_AFTER, _HANGS_AFTER = 10.0, 120.0

#: Microseconds, as systemd counts: there are no beats while the worker connects or stops.
_NO_WATCHDOG = 7 * 24 * 3600 * 1_000_000


@dataclass(frozen=True, slots=True)
class HealthState:
    """The last state that a worker has reported."""

    state: str  # ``starting``, ``ready``, ``drained``, ``connecting`` or ``stopping``
    pid: int  # the worker's main process
    at: float  # when, on the machine's monotonic clock, the same for all processes

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Read a file; return None if it is missing or malformed."""
        try:
            state, pid, at = path.read_text().split()
            return cls(state, int(pid), float(at))
        except (OSError, ValueError):
            return None

    def write(self, path: Path) -> None:
        """Replace a file in one step, so that it is never read in part."""
        new = path.with_name(f"{path.name}.{self.pid}")
        new.write_text(f"{self.state} {self.pid} {self.at:.3f}\n")
        new.replace(path)

    def why_not_ready(self, now: float) -> str:
        """Return why the worker does not run tasks; the empty string if it does."""
        if self.state != "ready":
            return f"the worker is {self.state}"
        silent = now - self.at
        return f"its event loop is silent for {silent:.0f} s" if silent > _NOT_READY_AFTER else ""

    def why_not_alive(self, now: float) -> str:
        """Return why the worker should be restarted; the empty string if it should not."""
        silent = now - self.at
        if self.state in ("ready", "drained") and silent > _HANGS_AFTER:
            return f"its event loop hangs for {silent:.0f} s"
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return f"process {self.pid} has ended"
        except PermissionError:
            pass  # another user's process, so it exists
        return ""


class HealthReport:
    """Reports a worker's state to a file and to the socket of systemd, as far as there are any."""

    def __init__(self, file: Path | None, notify: str = "", watchdog: int = 0) -> None:
        self._file = file
        self._notify = f"\0{notify[1:]}" if notify.startswith("@") else notify
        #: Microseconds of silence after which systemd kills the worker; 0 if it does not.
        self._watchdog = watchdog
        self._state = ""
        self._has_failed = False

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Self:
        """Return the reports that the environment asks for."""
        file = environ.get(VARIABLE)
        watchdog = environ.get("WATCHDOG_USEC", "0")
        return cls(
            Path(file) if file else None,
            environ.get("NOTIFY_SOCKET", ""),
            int(watchdog) if watchdog.isdecimal() else 0,
        )

    @property
    def is_wanted(self) -> bool:
        """Whether there is a file or a socket."""
        return bool(self._file or self._notify)

    def beat(self, *, drained: bool = False) -> None:
        """Report that the event loop runs."""
        state, changes = "drained" if drained else "ready", []
        if self._state != state:
            changes = ["READY=1", f"STATUS={'Drained: takes no' if drained else 'Takes'} tasks."]
            if self._watchdog:
                changes.append(f"WATCHDOG_USEC={self._watchdog}")
        self._report(state, [*changes, "WATCHDOG=1"])

    def enter(self, state: str) -> None:
        """Report a state in which the event loop does not run."""
        messages = [f"STATUS=The worker is {state}."]
        if state == "stopping":
            messages.append("STOPPING=1")
        if self._watchdog and state != "starting":
            messages.append(f"WATCHDOG_USEC={_NO_WATCHDOG}")
        self._report(state, messages)

    def _report(self, state: str, messages: list[str]) -> None:
        self._state = state
        try:
            if self._file is not None:
                HealthState(state, os.getpid(), time.monotonic()).write(self._file)
            if self._notify:
                self._send("\n".join(messages).encode())
        except OSError as error:
            if not self._has_failed:
                logger.warning("Could not report the health of this worker: %s", error)
            self._has_failed = True

    def _send(self, message: bytes) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            # A slow reader must not block the event loop.
            sender.settimeout(0.0)
            with suppress(BlockingIOError):
                sender.sendto(message, self._notify)
