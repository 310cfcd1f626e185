"""What celery_batch keeps on Celery's worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from celery_batch.worker.executor.warmup import WarmUp

__all__ = ["WorkerContext"]


@dataclass
class WorkerContext:
    """
    The state of one worker that its steps share.

    Args:
        user_prefetch: The prefetch multiplier that the user has set; 0 for no limit.
        tasks: The batch tasks that the worker serves; grows with the first message of another.
        routed: The names of those that are routed to its queues.
        warm_up: The loading of models in pool processes; None on other pools than prefork.
        serve_metrics: Serves the metrics, if the settings ask for that, with these queues' depths.
        metrics_url: Where they are served.
    """

    user_prefetch: int
    tasks: list[Any] = field(default_factory=list)
    routed: frozenset[str] = frozenset()
    warm_up: WarmUp | None = None
    serve_metrics: Callable[[list[str]], None] = lambda _: None
    metrics_url: str | None = None

    @classmethod
    def of(cls, worker: Any) -> WorkerContext:
        """
        Return the context of Celery's worker, made on first use.

        A worker that started before the first batch task was defined has run none of our steps.
        """
        context = getattr(worker, "batch_context", None)
        if context is None:
            context = worker.batch_context = cls(worker.prefetch_multiplier)
        return context
