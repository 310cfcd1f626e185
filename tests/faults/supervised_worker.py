"""One worker as its supervisor sees it: a main process, its pool processes, a restart."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import psutil

from celery_batch.processes.managed_process import ManagedProcess, wait_until
from tests.services.forked import start
from tests.services.setup import CELERY

__all__ = ["SupervisedWorker"]

#: Without the second that a worker spends looking for neighbours when it starts.
_OPTIONS = ("-l", "INFO", "--without-mingle")

#: The time of a line of the log that says so.
_LOST = re.compile(r"^\[([^]]+): WARNING/MainProcess\] .*onnection to broker lost", re.MULTILINE)


class SupervisedWorker:
    """
    A worker with its pool processes.

    Args:
        name: Its node name, the same after a restart.
        folder: For its logs, one for each start.
        env: Its environment.
        processes: How many pool processes; with one, batches overlap in it.
        python: The interpreter of its environment.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        env: Mapping[str, str],
        processes: int,
        *,
        python: str = sys.executable,
    ) -> None:
        self.name = name
        self._start = start if python == sys.executable else ManagedProcess
        celery = [CELERY] if python == sys.executable else [python, "-m", "celery"]
        self._command = (*celery, "-A", "tests.faults.tasks", "worker")
        self._options = ("-n", f"{name}@here", "-c", str(processes), *_OPTIONS)
        self._folder = folder
        self._env = env
        self._starts = 0
        self.child: ManagedProcess | None = None

    def launch(self) -> None:
        """Start it, or start it again, without waiting for it."""
        self.stop()
        self._starts += 1
        self.child = self._start(
            [*self._command, *self._options],
            self._folder / f"{self.name}-{self._starts}.log",
            env=self._env,
        )

    def wait(self) -> None:
        """Return when it takes tasks."""
        wait_until(self._why_not_ready, [self.child], what=self.name, timeout=90)

    def main(self) -> int:
        """Return the main process's id."""
        (main,) = psutil.Process(self.child.pid).children()
        return int(main.pid)

    def pool(self) -> list[int]:
        """Return the pool processes' ids."""
        return [process.pid for process in psutil.Process(self.main()).children()]

    def everybody(self) -> list[int]:
        """Return the ids of main process and pool processes."""
        main = self.main()
        return [main, *(process.pid for process in psutil.Process(main).children())]

    def signal(self, number: signal.Signals) -> list[int]:
        """Send a signal to all its processes at once; return their ids."""
        everybody = self.everybody()
        for pid in everybody:
            os.kill(pid, number)
        return everybody

    def lost_broker(self) -> list[float]:
        """Return when its log says that the broker was lost, in seconds of the monotonic clock."""
        since = time.time() - time.monotonic()
        times = _LOST.findall(self.child.log.read_text(errors="replace"))
        return [datetime.fromisoformat(each).timestamp() - since for each in times]

    def ended(self, timeout: float) -> bool:
        """Wait for its end, by itself; say whether it came in time."""
        return self.child.wait(timeout)

    def stop(self) -> None:
        """Have it end as a supervisor would, if it still runs."""
        if self.child is not None:
            self.child.stop(grace=20)

    def _why_not_ready(self) -> str:
        said = self.child.log.read_text(errors="replace")
        return "" if f"{self.name}@here ready." in said else "has not said that it is ready"
