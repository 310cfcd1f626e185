"""Restarts processes that end, with a growing pause for those that end soon after their start."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from typing import Any

__all__ = ["LONGEST_PAUSE", "STEADY", "Supervised", "restart_pause"]

logger = logging.getLogger(__name__)

#: Seconds after which the end of a process is no early exit; loading a model counts.
STEADY = 30.0

#: Seconds before a process is started again after early exits: the first pause and the longest.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0


def restart_pause(failures: int, first: float) -> float:
    """Return the pause after this many failures in a row: each is twice as long as the last."""
    return min(first * 2.0 ** min(failures - 1, 9), LONGEST_PAUSE) if failures else 0.0


class Supervised(ABC):
    """A process and its successors."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.process: Any = None
        #: How often it was started.
        self.starts = 0
        #: How many times in a row it ended within `STEADY` seconds.
        self.early_exits = 0
        #: When the process was started, and when the next one starts; by the monotonic clock.
        self.started = self.due = 0.0

    @abstractmethod
    def _start(self) -> Any:
        """Start a process and return it."""

    @abstractmethod
    def _exit_code(self) -> int | None:
        """Return the process' exit code; None while it runs."""

    @abstractmethod
    def _ended(self, code: int) -> None:
        """Take note of an exit code; an infinite ``due`` means that no process follows."""

    def check(self) -> None:
        """Start a process where none runs and the pause is over."""
        self.reap()
        self.start_when_due()

    def reap(self) -> None:
        """Take note of the end of the process."""
        if self.process is None or (code := self._exit_code()) is None:
            return
        lived = time.monotonic() - self.started
        pause = self._pause(is_early=lived < STEADY)
        pid = self.process.pid
        self._ended(code)
        self.process = None
        if self.due < float("inf"):
            logger.error(
                "%s (pid %d) ended with exit code %s after %.1f s; it is restarted in %g s",
                self.name,
                pid,
                code,
                lived,
                pause,
            )

    def start_when_due(self) -> None:
        """Start a process where none runs and the pause is over."""
        if self.process is not None or time.monotonic() < self.due:
            return
        try:
            self.process = self._start()
        except OSError as error:  # there is no memory, or no space on the disk
            if not self.starts:
                raise
            pause = self._pause(is_early=True)
            logger.error("%s cannot be started: %s; tried again in %g s", self.name, error, pause)  # noqa: TRY400
        else:
            self.starts += 1
            self.started = time.monotonic()

    def _pause(self, *, is_early: bool) -> float:
        self.early_exits = self.early_exits + 1 if is_early else 0
        pause = restart_pause(self.early_exits, FIRST_PAUSE)
        self.due = time.monotonic() + pause
        return pause

    def reset(self) -> None:
        """Forget a process that was stopped, so that the next check starts another."""
        self.process, self.due, self.early_exits = None, 0.0, 0
