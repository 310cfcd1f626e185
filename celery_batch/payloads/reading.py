"""Reads what is stored beside a message, for a worker that runs its task alone."""

from __future__ import annotations

from typing import Any, cast

from kombu.exceptions import OperationalError
from kombu.utils.functional import retry_over_time

from celery_batch.errors import InvalidPayload
from celery_batch.payloads.app_payloads import AppPayloads
from celery_batch.payloads.store import PayloadStore, StoreError
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
        MessageTooLarge: They are larger than ``batch_max_payload_size``.
        OperationalError: The store cannot be reached.
    """
    try:
        reference = PayloadReference.from_header(request.get(PAYLOADS))
    except ValueError as error:
        raise InvalidPayload(str(error)) from error
    payloads = AppPayloads.of(app)
    why_not = payloads.why_unreadable(reference.total)
    if why_not is not None:
        raise why_not
    keys, sizes = [reference.key(request.id)], [reference.total]
    get, policy = cast("PayloadStore", payloads.store).get, app.backend.retry_policy
    try:
        (data,) = retry_over_time(get, StoreError, (keys, sizes), **policy)
    except StoreError as error:
        raise OperationalError(f"The payload store cannot be reached: {error}") from error
    parts = reference.split(data)
    return put_back(args, parts), put_back(kwargs, parts)
