"""

Batch tasks of an app that had none when its worker started.

Celery reads an app's steps when it makes a worker, and a batch task adds ours when it is
bound.  Where the first one is bound later, in a test beside a running worker or in a module
that a running worker imports, the worker is given with its first message what can be given
to it then.  Its next connection has everything.
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
    Give a running worker our steps.

    Called on the thread that reads messages, as what it changes belongs to that.

    Args:
        consumer: Celery's consumer, without our steps.
    """
    worker = consumer.controller
    logger.info("The first batch task was defined after this worker's start: it is served now")
    BatchMetrics(worker)
    notify_clients(worker.app, batch_tasks(worker.app))
    step = BatchConsumer(consumer)
    # Another list: Celery is still going through the old one, whose last step is running.
    steps = list(consumer.steps)
    ends = [place for place, each in enumerate(steps) if isinstance(each, Evloop)]
    steps.insert(ends[0] if ends else len(steps), step)
    consumer.steps = steps
    consumer.blueprint.started += 1
    step.join()
