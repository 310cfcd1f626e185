"""Reads what is stored beside a message, for a worker that runs its task alone."""

from __future__ import annotations

from typing import Any

from celery_batch.errors import InvalidPayload
from celery_batch.payloads.app_payloads import AppPayloads
from celery_batch.payloads.values import PayloadReference, put_back
from celery_batch.protocol import PAYLOADS

__all__ = ["with_values"]


def with_values(app: Any, request: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """
    Return the arguments of a call with their stored values.

    Args:
        app: The Celery app.
        request: Celery's context of the call.
        args: Positional arguments.
        kwargs: Keyword arguments.

    Raises:
        InvalidPayload: The values are gone, or not what was stored.
        StoreError: The store cannot be reached.
    """
    reference = PayloadReference.from_header(request.get(PAYLOADS))
    store = AppPayloads.of(app).store
    if store is None:
        raise InvalidPayload("this worker has no payload store: set batch_payload_store")
    (data,) = store.get([reference.key(request.id)], [reference.total])
    parts = reference.split(data)
    return put_back(args, parts), put_back(kwargs, parts)
