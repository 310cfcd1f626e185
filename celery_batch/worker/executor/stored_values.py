"""Reads what is stored beside the messages of a batch, in the pool process."""

from __future__ import annotations

import logging
from enum import Enum, auto
from typing import Any

from celery import states
from kombu.utils.functional import retry_over_time

from celery_batch.errors import InvalidPayload
from celery_batch.payloads.app_payloads import AppPayloads
from celery_batch.payloads.store import StoreError
from celery_batch.payloads.values import PayloadReference
from celery_batch.protocol import PAYLOADS
from celery_batch.worker.dispatch.payload import BatchPayload, Delivery

__all__ = ["Instead", "read_stored_values"]

logger = logging.getLogger(__name__)

#: How often to read again.  A batch that waits here is not accepted yet: where the broker is away,
#: too, its requests are soon given to others, and it would run a second time.
_RETRIES = {"max_retries": 2, "interval_start": 0.05, "interval_step": 0.15, "interval_max": 0.2}


class Instead(Enum):
    """What becomes of a request that is not run, and has not failed."""

    ENDED = auto()  # its end is stored, and its message came once more
    #: The values of those before it fill the memory that a batch may take, or the store is away.
    LATER = auto()


def read_stored_values(task: Any, payload: BatchPayload) -> dict[int, Exception | Instead]:
    """Give the stored values of a batch to its deliveries; return by index why one has none."""
    found: dict[int, Exception | Instead] = {}
    references: dict[int, PayloadReference] = {}
    payloads, size = None, 0
    for index, delivery in enumerate(payload):
        header = delivery.request.get(PAYLOADS)
        if header is not None:
            payloads = payloads or AppPayloads.of(task.app)
            reference = PayloadReference.from_header(header)
            error = payloads.why_unreadable(reference.total)
            if error is not None:
                found[index] = error
            elif references and size + reference.total > payloads.settings.most:
                found[index] = Instead.LATER
            else:
                references[index] = reference
                size += reference.total
    if not references or payloads is None:
        return found
    keys = [each.key(payload[index].task_id) for index, each in references.items()]
    sizes = [each.total for each in references.values()]
    store: Any = payloads.store  # there is one, for these values have been found readable
    try:
        values = retry_over_time(store.get, StoreError, (keys, sizes), **_RETRIES)
    except StoreError as error:
        logger.warning("Could not read the stored values of %d messages: %s", len(keys), error)
        return dict.fromkeys(range(len(payload)), Instead.LATER)
    for (index, reference), data in zip(references.items(), values, strict=True):
        try:
            payload[index] = payload[index]._replace(stored=reference.split(data))
        except InvalidPayload as error:
            has_ended = data is None and _has_ended(task, payload[index])
            found[index] = Instead.ENDED if has_ended else error
    return found


def _has_ended(task: Any, delivery: Delivery) -> bool:
    """Return whether the end of a request, or of this try of it, is stored: its values are gone."""
    try:
        meta = task.backend.get_task_meta(delivery.task_id)
    except Exception as error:  # noqa: BLE001 (then it fails, for what that is worth)
        logger.warning("Could not look up %s: %s", delivery.task_id, error)
        return False
    if meta["status"] != states.RETRY:
        return meta["status"] in states.READY_STATES
    request = delivery.request  # each try but the first finds the RETRY of the one before
    is_redelivered = (request.get("delivery_info") or {}).get("redelivered")
    return not request.get("retries") or bool(is_redelivered)
