"""Stores the state STARTED of items that ask for it themselves."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import Any

from celery import states
from celery.app.task import Context

from celery_batch.protocol import TRACK_HEADER
from celery_batch.worker.dispatch.payload import Delivery

__all__ = ["store_starts"]

logger = logging.getLogger(__name__)


def store_starts(task: Any, deliveries: Iterable[Delivery], accept: Any) -> None:
    """
    Store that items have started, as Celery does for all of a task with ``track_started``.

    Args:
        task: The batch task.
        deliveries: Those whose model is about to be called.
        accept: Content types that may be decoded.
    """
    if task.track_started:
        return  # their tracers have done so
    for delivery in deliveries:
        request = delivery.request
        if not request.get(TRACK_HEADER):
            continue
        ignored = request.get("ignore_result")
        if task.ignore_result if ignored is None else ignored:
            continue
        try:
            _store_start(task, delivery, accept)
        except Exception as error:  # noqa: BLE001 (its answer is of more use than its start)
            logger.warning("Could not store that %s has started: %s", delivery.task_id, error)


def _store_start(task: Any, delivery: Delivery, accept: Any) -> None:
    args, kwargs, _ = delivery.decode(accept)
    request = Context(delivery.request, args=args, kwargs=kwargs, called_directly=False)
    who = {"pid": os.getpid(), "hostname": request.hostname}
    task.backend.store_result(delivery.task_id, who, states.STARTED, request=request)
