"""Records which messages run, for the case that the worker dies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["RunningMessages"]


class RunningMessages:
    """The running messages of one connection; this base records nothing."""

    #: Whether acknowledgements are collected, so that none has to wait for the event loop.
    collects = False

    #: Whether messages are fetched by what each task can use.
    reads_by_room = False

    def started(self, task_requests: Sequence[Any]) -> None:
        """Record that a pool process runs these requests of Celery's."""

    def give_back(self, task_requests: Sequence[Any]) -> None:
        """Return the messages of these requests of Celery's to the broker."""
        for request in task_requests:
            request.reject(requeue=True)

    def flush(self) -> None:
        """Send the acknowledgements that are collected."""

    def drop_lost(self) -> None:
        """Drop requests that other workers have taken; called before batches leave."""
