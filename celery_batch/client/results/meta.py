"""Decodes the meta data of tasks as they are stored."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from celery import states
from celery.backends.base import Backend

from celery_batch.compat.kombu import decodes_json
from celery_batch.serialization.arrays import array_decoder
from celery_batch.serialization.decoding import decode_json

__all__ = ["decode_meta"]

_JSON = "application/json"

#: How meta data begin whose result is an array, what comes before and after its base64, and most
#: bytes of its dtype and shape.
_ARRAY = b'{"status": "SUCCESS", "result": {"__type__": "ndarray", "__value__": '
_BASE64, _REST, _LONGEST_TYPE = b'], "', b'"]}, "', 200


def decode_meta(backend: Any, value: bytes) -> Any:
    """Decode a stored value as `Backend.decode` does, in half the time where it is plain JSON."""
    if _is_plain(backend) and value[:1] == b"{":
        try:
            return _with_array(value) or decode_json(value.decode())
        except (ImportError, ValueError, RecursionError):
            return backend.decode(value)  # which raises an error of its own
    return backend.decode(value)


def _with_array(value: bytes) -> dict[str, Any] | None:
    """Decode meta data whose result is an array, with no look into its base64; None for others."""
    if not value.startswith(_ARRAY):
        return None
    start = value.find(_BASE64, len(_ARRAY), len(_ARRAY) + _LONGEST_TYPE) + len(_BASE64)
    end = value.find(b'"', start)
    if start < len(_ARRAY) or not value.startswith(_REST, end):
        return None
    array = _decoder_of(value[len(_ARRAY) : start])(value[start:end])
    meta = decode_json("{" + value[end + len(_REST) - 1 :].decode())
    return {"status": states.SUCCESS, "result": array, **meta}


@lru_cache(maxsize=256)
def _decoder_of(beginning: bytes) -> Callable[[bytes], Any]:
    dtype, shape, _ = decode_json(beginning.decode() + '"]')
    return array_decoder(dtype, shape)


def _is_plain(backend: Any) -> bool:
    return (
        type(backend).decode is Backend.decode
        and backend.content_type == _JSON
        and backend.accept is not None
        and _JSON in backend.accept
        and decodes_json()
    )
