"""What celery_batch keeps on Celery's worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from celery_batch.worker.executor.warmup import WarmUp

__all__ = ["WorkerContext"]


@dataclass
class WorkerContext:
    """The state of one worker that its steps share."""

    user_prefetch: int  # the prefetch multiplier that the user has set; 0 for no limit
    #: The batch tasks that the worker serves; grows with the first message of another.
    tasks: list[Any] = field(default_factory=list)
    routed: frozenset[str] = frozenset()  # the names of those that are routed to its queues
    #: The loading of models in pool processes; None on other pools than prefork.
    warm_up: WarmUp | None = None
    #: Serves the metrics, if the settings ask for that, with these queues' depths.
    serve_metrics: Callable[[list[str]], None] = lambda _: None
    metrics_url: str | None = None  # where they are served
    has_noted_events: bool = False  # whether it was logged that events were turned on at run time

    @classmethod
    def of(cls, worker: Any) -> WorkerContext:
        """Return the context of Celery's worker, made on first use."""
        context = getattr(worker, "batch_context", None)
        if context is None:
            context = worker.batch_context = cls(worker.prefetch_multiplier)
        return context
