"""
A span for each batch, where OpenTelemetry is in use.

OpenTelemetry's own instrumentation of Celery makes a span for each item.  They
belong to different traces, and the model's work for all of them to none: it gets
a span of its own, with a link to each item's span and one back from each.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

__all__ = ["BatchSpan"]


class BatchSpan:
    """
    The span of one batch; nothing at all in a process where nobody has set up tracing.

    Args:
        task_name: The batch task.
    """

    def __init__(self, task_name: str) -> None:
        self._task_name = task_name
        self._trace = _tracing()
        self._items: list[Any] = []
        self._about: dict[str, Any] = {}
        self._oldest: float | None = None

    @property
    def is_on(self) -> bool:
        """Whether this process traces."""
        return self._trace is not None

    def join(self) -> None:
        """Take in the item whose span is current now."""
        if self._trace is not None:
            span = self._trace.get_current_span()
            if span.get_span_context().is_valid:
                self._items.append(span)

    def describe(self, reason: str, worker: str, arrived: Sequence[float]) -> None:
        """
        Take in what is known of the batch.

        Args:
            reason: Why it left.
            worker: The worker's name.
            arrived: When its requests came to the worker, on the monotonic clock.
        """
        self._about = {"celery_batch.reason": reason, "celery.hostname": worker}
        self._oldest = min(arrived, default=None)

    def around_model(self, size: int) -> AbstractContextManager[None]:
        """
        Be the current span, and the parent of whatever the model's libraries trace.

        Args:
            size: Items in the batch.
        """
        return nullcontext() if self._trace is None else self._current(size)

    @contextmanager
    def _current(self, size: int) -> Iterator[None]:
        span = self._trace.get_tracer("celery_batch").start_span(
            f"batch/{self._task_name}",
            context=self._trace.set_span_in_context(self._trace.INVALID_SPAN),  # in no item's trace
            links=[self._trace.Link(item.get_span_context()) for item in self._items],
            attributes={
                "celery.task_name": self._task_name,
                "messaging.batch.message_count": size,
                **self._attributes(),
            },
        )
        for item in self._items:
            item.add_link(span.get_span_context())
        with self._trace.use_span(span, end_on_exit=True):
            yield

    def _attributes(self) -> dict[str, Any]:
        about = {name: value for name, value in self._about.items() if value}
        if self._oldest is not None:
            about["celery_batch.wait"] = max(time.monotonic() - self._oldest, 0.0)
        return about


def _tracing() -> Any:
    """
    Return OpenTelemetry's interface where somebody has set up tracing, else None.

    Who has done so has imported it, and nobody else pays for the import.  But a library
    may have imported it for ends of its own: redis-py does where it is installed.
    """
    trace = sys.modules.get("opentelemetry.trace")
    unset = getattr(trace, "ProxyTracerProvider", ())
    if trace is None or isinstance(trace.get_tracer_provider(), unset):
        return None
    return trace
