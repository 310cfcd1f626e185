"""Requests of a task that is paused: they are in this worker and do not run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from celery.worker.state import revoked

__all__ = ["Kept"]


class Kept:
    """
    The requests of one paused task, in the order in which they came.

    What runs, or runs again because its batch broke, is not among them.
    """

    def __init__(self) -> None:
        self._requests: list[tuple[Any, bool]] = []

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def rows(self) -> int:
        """How many rows they have."""
        return sum(request.rows for request, _ in self._requests)

    @property
    def oldest(self) -> float:
        """When the request arrived that is kept longest; never, if there is none."""
        return min((request.arrived for request, _ in self._requests), default=float("inf"))

    def add(self, task_request: Any, *, alone: bool = False) -> None:
        """
        Keep one of Celery's requests; it waits from its arrival on, as it would in line.

        Args:
            task_request: Its message is not acknowledged.
            alone: It is to run without company, once it runs.
        """
        if task_request.arrived is None:
            task_request.arrived = time.monotonic()
        self._requests.append((task_request, alone))

    def take(self, is_wanted: Callable[[Any], bool] = lambda _: True) -> list[tuple[Any, bool]]:
        """Remove and return those of whom something holds, each with whether it runs alone."""
        kept, self._requests = self._requests, []
        taken: list[tuple[Any, bool]] = []
        for request, alone in kept:
            (taken if is_wanted(request) else self._requests).append((request, alone))
        return taken

    def leave_out(self) -> int:
        """Announce the end of those whom nobody wants any more; return how many they were."""
        return len(self.take(_is_unwanted))


def _is_unwanted(request: Any) -> bool:
    return bool((request.expires or request.id in revoked) and request.revoked())
