"""What celery_batch keeps on Celery's consumer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from celery_batch.errors import ConfigurationError
from celery_batch.worker.context import WorkerContext
from celery_batch.worker.control.runtime_config import RuntimeConfig
from celery_batch.worker.intake.validation import MessageValidator
from celery_batch.worker.scheduling.scheduler import Scheduler

__all__ = ["ConsumerContext"]


@dataclass(frozen=True)
class ConsumerContext:
    """The parts of one consumer, which live as long as it does, over all its connections."""

    worker: WorkerContext
    validator: MessageValidator
    scheduler: Scheduler
    runtime_config: RuntimeConfig

    @classmethod
    def of(cls, consumer: Any) -> ConsumerContext:
        """Return the context of a Celery consumer that has the `BatchConsumer` step."""
        if not cls.is_attached(consumer):
            raise ConfigurationError("this worker had no batch task when it started")
        context: ConsumerContext = consumer.batch_context
        return context

    @classmethod
    def is_attached(cls, consumer: Any) -> bool:
        """Return whether a consumer has one; not if it started before the first batch task."""
        return hasattr(consumer, "batch_context")
