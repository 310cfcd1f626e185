"""

Batch tasks of an app that had none when its worker started.

Celery reads an app's steps when it makes a worker, and a batch task adds ours when it is
bound.  If the first one is bound later, in a test beside a running worker or in a module
that a running worker imports, its first message attaches what can be attached then.  The
next connection has everything.
"""

from __future__ import annotations

import logging
from typing import Any

from celery.worker.consumer.consumer import Evloop

from celery_batch.worker.bootsteps import BatchConsumer
from celery_batch.worker.metrics.exporter import BatchMetrics
from celery_batch.worker.redis.result_backend import notify_clients
from celery_batch.worker.scheduling.routing import batch_tasks

__all__ = ["attach_steps"]

logger = logging.getLogger(__name__)


def attach_steps(consumer: Any) -> None:
    """
    Attach our steps to the consumer of a running worker.

    Called on the thread that reads messages, which owns what it changes.
    """
    worker = consumer.controller
    logger.info("The first batch task was defined after this worker's start: it is served now")
    BatchMetrics(worker)  # which registers in the context of the worker
    notify_clients(worker.app, batch_tasks(worker.app))
    step = BatchConsumer(consumer)
    # Another list: Celery is still going through the old one, whose last step is running.
    steps = list(consumer.steps)
    ends = [place for place, each in enumerate(steps) if isinstance(each, Evloop)]
    steps.insert(ends[0] if ends else len(steps), step)
    consumer.steps = steps
    consumer.blueprint.started += 1
    step.open()
