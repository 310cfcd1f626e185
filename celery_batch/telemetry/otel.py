"""
A span for each batch, where OpenTelemetry is in use.

OpenTelemetry's own instrumentation of Celery makes a span for each item, each in its own
trace.  The model call serves all of them: it gets a span of its own, in a trace of its
own, with a link to each item's span and one back from each.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["BatchSpan"]


class BatchSpan:
    """The span of one batch; it does nothing in a process without tracing."""

    def __init__(self, task_name: str) -> None:
        self._task_name = task_name
        self._trace = _tracing()
        self._items: list[Any] = []
        self._reason = self._worker = ""
        self._arrived: Iterable[float | None] = ()

    def join(self) -> None:
        """Add the item whose span is current now."""
        if self._trace is not None:
            span = self._trace.get_current_span()
            if span.get_span_context().is_valid:
                self._items.append(span)

    def describe(self, reason: str, worker: str, arrived: Iterable[float | None]) -> None:
        """Set the span's attributes; the times are on the monotonic clock, as far as known."""
        self._reason, self._worker, self._arrived = reason, worker, arrived

    @contextmanager
    def around_model(self, size: int) -> Iterator[None]:
        """Make the batch's span the parent of spans of the model's libraries."""
        if self._trace is None:
            yield
            return
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
        described = {"celery_batch.reason": self._reason, "celery.hostname": self._worker}
        attributes: dict[str, Any] = {name: value for name, value in described.items() if value}
        arrived = [moment for moment in self._arrived if moment is not None]
        if arrived:
            attributes["celery_batch.wait"] = max(time.monotonic() - min(arrived), 0.0)
        return attributes


def _tracing() -> Any:
    """Return OpenTelemetry's API where tracing is set up; libraries may import it without that."""
    trace = sys.modules.get("opentelemetry.trace")
    unset = getattr(trace, "ProxyTracerProvider", ())
    if trace is None or isinstance(trace.get_tracer_provider(), unset):
        return None
    return trace
