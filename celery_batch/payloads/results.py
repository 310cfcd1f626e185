"""Stores the large parts of a result beside its meta data, and reads them."""

from __future__ import annotations

import logging
from typing import Any

from celery import states
from celery.backends.redis import RedisBackend

from celery_batch.errors import InvalidPayload
from celery_batch.payloads.app_payloads import SERIALIZERS, AppPayloads
from celery_batch.payloads.store import StoreError
from celery_batch.payloads.values import PayloadReference, Payloads, put_back, take_out
from celery_batch.protocol import PAYLOADS
from celery_batch.serialization.encode_errors import OutputTooLarge

__all__ = [
    "forget_payload",
    "mentions_payload",
    "read_if_payload",
    "release",
    "restored",
    "with_stored_result",
]

logger = logging.getLogger(__name__)

#: What of a result's meta data may be large.
_LARGE = ("result", "args", "kwargs")

#: Seconds for which a payload outlives the result that refers to it.
_LONGER = 60.0

#: Bytes at the end of an encoded result that have its whole reference, with the most values.
_END = 1 << 14

#: Seconds for which the payload of a result that never expires is kept: a hundred years.
_FOR_EVER = 3.2e9


def with_stored_result(backend: Any, meta: dict[str, Any], task: str = "") -> dict[str, Any]:
    """Store the large parts of a result beside it; return what is left, all if none was."""
    payloads = AppPayloads.of(backend.app)
    if payloads.store is None or backend.serializer not in SERIALIZERS:
        return meta
    taken, least = Payloads(), payloads.settings.threshold
    try:
        found = {
            name: take_out(meta[name], least, taken, takes_bytes=payloads.takes_bytes)
            for name in _LARGE
            if name in meta
        }
    except RecursionError:  # which the encoder says
        return meta
    if not len(taken):
        return meta
    reference = taken.reference()
    if reference.total > payloads.settings.most:
        output = Payloads()
        take_out(meta["result"], least, output, takes_bytes=payloads.takes_bytes)
        what = "output has" if len(output) == len(taken) else "output and arguments have"
        head = f"{task}: " if task else ""
        raise OutputTooLarge(
            f"{head}the {what} {reference.total} bytes of large values, and"
            f" batch_max_payload_size allows {payloads.settings.most}: raise it for callers and"
            f" workers, or return less"
        )
    seconds = backend.expires + _LONGER if backend.expires else _FOR_EVER
    try:
        payloads.store.put(reference.key(meta["task_id"]), taken.data, seconds)
    except StoreError as error:
        payloads.warn_once("The payload store refuses results, which are stored whole: %s", error)
        return meta
    return {**meta, **found, PAYLOADS: list(reference)}  # at the end, which is looked at first


def mentions_payload(value: bytes) -> bool:
    """Return whether an encoded result may refer to a payload."""
    return PAYLOADS.encode() in value


def restored(backend: Any, meta: dict[str, Any]) -> dict[str, Any]:
    """Return a result's meta data with its stored parts in their places."""
    header = meta.pop(PAYLOADS)
    try:
        reference, task_id = PayloadReference.from_header(header), str(meta["task_id"])
        parts = AppPayloads.of(backend.app).read(reference, task_id, backend.retry_policy)
        for name in _LARGE:
            if name in meta:
                meta[name] = put_back(meta[name], parts)
    except ValueError as error:
        text = f"the task has succeeded, and its result cannot be read: {error}"
        return {**meta, "status": states.FAILURE, "result": InvalidPayload(text)}
    return meta


def release(backend: Any, task_id: str) -> None:
    """Delete what is stored beside a result that is about to be forgotten, if anything is."""
    if not isinstance(backend, RedisBackend):
        return  # only with these do workers store results so
    try:
        if AppPayloads.of(backend.app).store is not None:
            value = read_if_payload(backend, task_id)
            if value is not None:
                forget_payload(backend, backend.decode(value))
    except Exception as error:  # noqa: BLE001 (Celery meets it next, and tries again if it may)
        logger.debug("A result could not be read, and its payload expires: %s", error)


def read_if_payload(backend: Any, task_id: str) -> bytes | None:
    """Return an encoded result from Redis if it may refer to a payload; of others read the end."""
    key = backend.get_key_for_task(task_id)
    end: bytes = backend.client.getrange(key, -_END, -1)
    if not mentions_payload(end):
        return None
    whole: bytes | None = end if len(end) < _END else backend.get(key)
    return whole


def forget_payload(backend: Any, meta: Any) -> None:
    """Delete what is stored beside a result, whose meta data are as decoded."""
    try:
        reference = PayloadReference.from_header(meta[PAYLOADS])
        store = AppPayloads.of(backend.app).store
        if store is not None:
            store.delete([reference.key(str(meta["task_id"]))])
    except (KeyError, TypeError, ValueError, StoreError) as error:
        logger.debug("A payload could not be deleted, and expires: %s", error)
