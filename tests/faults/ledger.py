"""What the models really ran, read from the file that the tasks write."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Ledger", "Run"]


@dataclass(slots=True)
class Run:
    """
    One execution of the model on a batch.

    Args:
        pid: The process it ran in.
        items: The numbers of its items.
        started: Seconds of the machine's monotonic clock.
        ended: Likewise; None if the process ended first.
        failed: The model raised.
    """

    pid: int
    items: list[int]
    started: float
    ended: float | None = None
    failed: bool = False

    def was_on(self, since: float, until: float) -> bool:
        """Say whether the model was at it at some moment of a span of time."""
        return self.started <= until and (self.ended is None or self.ended >= since)


class Ledger:
    """
    Reads the file that `tests.faults.tasks` writes.

    Args:
        path: Of the file; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def runs(self) -> list[Run]:
        """Return every execution so far, in the order they started."""
        runs: dict[str, Run] = {}
        for event in self._events():
            if "items" in event:
                runs[event["run"]] = Run(event["pid"], event["items"], event["at"])
            else:
                run = runs[event["run"]]
                run.ended, run.failed = event["at"], event["failed"]
        return list(runs.values())

    def by_item(self) -> dict[int, list[Run]]:
        """Return the executions of each item, in the order they started."""
        found = defaultdict(list)
        for run in self.runs():
            for item in run.items:
                found[item].append(run)
        return dict(found)

    def wait_for(self, items: int, timeout: float) -> None:
        """
        Return when the models have begun with this many items.

        Raises:
            TimeoutError: They have not in time.
        """
        deadline = time.monotonic() + timeout
        while (begun := sum(len(run.items) for run in self.runs())) < items:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{begun} of {items} items begun after {timeout:g} s")
            time.sleep(0.01)

    def _events(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        return [json.loads(line) for line in self.path.read_text().splitlines()]
