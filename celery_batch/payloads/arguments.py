"""Takes large arguments out of the messages of calls, to be stored beside these; reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from celery_batch.errors import InvalidPayload, MessageTooLarge
from celery_batch.payloads.app_payloads import SERIALIZERS, AppPayloads, seconds_until
from celery_batch.payloads.uploads import Upload, Uploads, is_stored
from celery_batch.payloads.values import JSON, PayloadReference, Payloads, put_back, take_out
from celery_batch.protocol import PAYLOADS
from celery_batch.serialization.arrays import size_of
from celery_batch.serialization.typed_json import StoredValue, encode_json

__all__ = ["may_be_large", "with_stored_values", "with_values"]

#: Types of arguments that are never stored, whatever their value; texts only if they are long.
_SMALL = frozenset((int, float, bool, type(None)))

#: Python writes no number of more than 4,300 digits; from this one on it is tried.
_LARGEST_INT = (1 << 63) - 1

#: Characters of a text, or values of a list, from which on its size is looked at.
_LONG = 1 << 12

#: Bytes that one value of a list takes in a message, at least.
_SHORTEST = 3


def may_be_large(args: Any, kwargs: Any) -> bool:
    """Return whether arguments may have a part that is to be stored; quick for small ones."""
    return not (all(map(_is_small, args or ())) and all(map(_is_small, (kwargs or {}).values())))


def _is_small(value: Any) -> bool:
    kind = type(value)
    if kind in _SMALL:
        return True
    if kind is str:
        return len(value) < _LONG
    return kind is list and len(value) < _LONG and _SMALL.issuperset(map(type, value))


def with_stored_values(
    task: Any,
    args: Any,
    kwargs: Any,
    options: dict[str, Any],
    uploads: Uploads | None = None,
) -> tuple[Any, Any, dict[str, Any]]:
    """Store the large arguments of a call, now or with `uploads`; return what to send of it."""
    headers = options.get("headers")
    if isinstance(headers, dict) and PAYLOADS in headers:  # of the try before
        headers = {name: each for name, each in headers.items() if name != PAYLOADS}
        options = {**options, "headers": headers or None}
    if not may_be_large(args, kwargs):
        return args, kwargs, options
    payloads = AppPayloads.of(task.app)
    serializer = options.get("serializer") or task.serializer or payloads.serializer
    if not payloads.can_send or serializer not in SERIALIZERS:
        return args, kwargs, options
    taken = Payloads()
    try:
        found_args, found_kwargs = _take_out(payloads, args, kwargs, taken)
    except RecursionError:  # on which Celery raises an error of its own
        return args, kwargs, options
    if not (len(taken) and _can_be_sent(task, found_args, found_kwargs, serializer)):
        return args, kwargs, options
    reference = taken.reference()
    if reference.total > payloads.settings.most:
        raise MessageTooLarge(
            f"{task.name}: the large arguments have {reference.total} bytes, and"
            f" batch_max_payload_size allows {payloads.settings.most}: raise it for callers and"
            f" workers, or send less in a call"
        )
    task_id = options.get("task_id") or str(uuid4())
    seconds = payloads.settings.expires + _seconds_until_due(task, options)
    upload = Upload(task_id, reference.key(task_id), taken.data, seconds, options)
    if not (is_stored if uploads is None else uploads.take)(payloads, upload):
        return args, kwargs, options
    headers = {**(options.get("headers") or {}), PAYLOADS: list(reference)}
    return found_args, found_kwargs, {**options, "task_id": task_id, "headers": headers}


def _can_be_sent(task: Any, args: Any, kwargs: Any, serializer: str) -> bool:
    """Return whether a call is one: else it raises as it is sent, and nothing is to be stored."""
    try:
        if task.typing and (check := getattr(task, "__header__", None)):  # else a class's task
            check(*(args or ()), **(kwargs or {}))
        values = *(args or ()), *(kwargs or {}).values()
        is_plain = all(map(_is_plain, values)) and {str}.issuperset(map(type, kwargs or ()))
        if serializer == "json" and not is_plain:
            encode_json((args, kwargs))
    except Exception:  # noqa: BLE001 (Celery meets it as well, and raises its own error)
        return False
    return True


def _is_plain(value: Any) -> bool:
    """Return whether a value is stored, or a small one that JSON surely has a word for."""
    if type(value) is StoredValue:
        return True
    parts = value if type(value) is list else (value,)
    return _is_small(value) and not any(
        type(each) is int and abs(each) > _LARGEST_INT for each in parts
    )


def _take_out(payloads: AppPayloads, args: Any, kwargs: Any, taken: Payloads) -> tuple[Any, Any]:
    settings, takes_bytes = payloads.settings, payloads.takes_bytes
    args = take_out(args, settings.threshold, taken, takes_bytes=takes_bytes)
    kwargs = take_out(kwargs, settings.threshold, taken, takes_bytes=takes_bytes)
    if settings.message_size is None:
        return args, kwargs
    if _least_size(args) + _least_size(kwargs) > settings.message_size // 4:
        args, kwargs = _take_out_texts(settings, args, kwargs, taken)
    return args, kwargs


def _least_size(value: Any) -> int:
    """Return about the bytes of a value in a message, and hardly more."""
    kind = type(value)
    if kind is str or kind is bytes:
        return len(value)
    if kind is list or kind is tuple:
        if _SMALL.issuperset(map(type, value)):
            return len(value) * _SHORTEST
        return sum(map(_least_size, value))
    if kind is dict:
        return sum(len(key) if type(key) is str else 0 for key in value) + sum(
            map(_least_size, value.values())
        )
    return size_of(value) if kind is not StoredValue else 0


def _take_out_texts(settings: Any, args: Any, kwargs: Any, taken: Payloads) -> tuple[Any, Any]:
    """Store whole arguments, as JSON, if the message would be too large with them."""
    encoded: dict[Any, bytes] = {}
    places = [*enumerate(args or ()), *(kwargs or {}).items()]
    for place, value in places:
        if not _is_small(value) and type(value) is not StoredValue:
            try:
                encoded[place] = encode_json(value).encode()
            except (TypeError, ValueError, RecursionError):  # which is raised as it is sent
                return args, kwargs
    # In a message on Redis each three bytes are four.
    if sum(map(len, encoded.values())) * 4 // 3 < settings.message_size - _LONG:
        return args, kwargs
    stored = {
        place: StoredValue(taken.add(data), JSON)
        for place, data in encoded.items()
        if len(data) >= settings.threshold and not taken.is_full
    }
    args = [stored.get(place, value) for place, value in enumerate(args or ())]
    kwargs = {name: stored.get(name, value) for name, value in (kwargs or {}).items()}
    return args, kwargs


def _seconds_until_due(task: Any, options: Mapping[str, Any]) -> float:
    """Return for how long a call may wait before it runs, as far as it says so."""
    expires = options.get("expires", task.expires)
    found = [options.get("countdown"), options.get("eta"), expires]
    return max(map(seconds_until, found))


def with_values(app: Any, request: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return the arguments of a call with their stored values, for a worker that runs it alone."""
    try:
        reference = PayloadReference.from_header(request.get(PAYLOADS))
    except ValueError as error:
        raise InvalidPayload(str(error)) from error
    parts = AppPayloads.of(app).read(reference, request.id, app.backend.retry_policy)
    return put_back(args, parts), put_back(kwargs, parts)
