"""Records which messages run, for the case that the worker dies, and acknowledges them together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["CollectedAcks", "RunningMessages"]


class RunningMessages:
    """The running messages of one connection; this base records nothing."""

    #: Whether acknowledgements are collected, so that none has to wait for the event loop.
    collects = False

    #: Whether messages are fetched by what each task can use.
    fetches_per_task = False

    def started(self, task_requests: Sequence[Any]) -> None:
        """Record that a pool process runs these requests of Celery's."""

    def give_back(self, task_requests: Sequence[Any]) -> None:
        """Return the messages of these requests of Celery's to the broker."""
        for request in task_requests:
            request.reject(requeue=True)

    def stop_receiving(self) -> None:
        """Have the broker deliver nothing more, at an orderly stop."""

    def give_back_last(self, task_requests: Sequence[Any]) -> None:
        """Return what has not run at an orderly stop; here the end of the connection does so."""

    def flush(self) -> None:
        """Send the acknowledgements that are collected."""

    def drop_taken_over(self) -> None:
        """Drop requests that other workers have taken; called before batches leave."""

    def was_taken_over(self, request: Any) -> bool:  # noqa: ARG002 (those of Redis look)
        """Return whether another worker has taken a request that waited outside of its queue."""
        return False


class CollectedAcks(RunningMessages):
    """Collects acknowledgements and sends them once in a pass of the event loop."""

    collects = True

    def __init__(self, consumer: Any, scheduler: Any) -> None:
        self._consumer = consumer
        self._scheduler = scheduler
        self._is_flushing_soon = self._is_sending = False
        self._lock = threading.RLock()  # pools may acknowledge on threads

    def flush(self) -> None:
        """Send what has been collected; what cannot be sent is kept."""
        self._is_flushing_soon = False
        self._unless_sending(self._send_collected)

    def _unless_sending(self, work: Callable[[], object]) -> None:
        with self._lock:
            if not self._is_sending:  # else in a signal handler, whose thread goes on with that
                self._is_sending = True
                try:
                    work()
                finally:
                    self._is_sending = False

    def _send_collected(self) -> None:
        raise NotImplementedError

    def _flush_soon(self) -> None:
        if not self._scheduler.is_open:
            self.flush()  # there is no further pass of the event loop
        elif not self._is_flushing_soon:
            self._is_flushing_soon = True
            self._consumer.hub.call_soon(self._flush_in_pass)

    def _flush_in_pass(self) -> None:
        self.flush()
