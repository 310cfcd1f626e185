"""
Arrays in requests and responses: lists of numbers in JSON, or bytes in the format .npy.

Nothing is unpickled, and only reading needs NumPy.
"""

from __future__ import annotations

import json
from typing import Any

from celery_batch.errors import BatchError, InvalidRow
from celery_batch.serialization.lists import as_lists, finite
from celery_batch.serialization.npy import decode_npy, encode_npy
from celery_batch.web.errors import http_error

__all__ = ["NotAcceptable", "as_lists", "encode_outputs", "lists_in_json", "read_npy"]

_JSON = "application/json"

#: The names of .npy; neither is registered.
_NPY = ("application/x-npy", "application/octet-stream")

#: What JSON answers, too, unless something is asked for by its name.
_ANY = ("application/*", "*/*")


class NotAcceptable(BatchError):
    """The outputs are no array, so they cannot be answered as one."""

    status_code = 406


def encode_outputs(outputs: Any, accept: str | None = None) -> tuple[bytes, str]:
    """
    Encode what `predict` returned as the body of a response, as its client accepts it.

    Args:
        outputs: Arrays of one dtype and shape, which become the rows of one array; or one
            array. In JSON any value: its arrays become lists, NaN and infinities null, and
            exceptions the bodies of `http_error`.
        accept: The request's header ``Accept``. With ``application/x-npy`` or
            ``application/octet-stream`` the body is a .npy file; by default it is JSON.

    Returns:
        The body, and its content type.

    Raises:
        NotAcceptable: The client accepts only .npy, and the outputs are no such arrays.
        TypeError: The outputs are not JSON.
    """
    npy, takes_json = _accepted(accept or "")
    if npy:
        try:
            return encode_npy(outputs), npy
        except (TypeError, ValueError) as error:
            if not takes_json:
                raise NotAcceptable(f"The outputs cannot be answered as .npy: {error}") from None
    return _json(outputs), _JSON


def _accepted(accept: str) -> tuple[str, bool]:
    """Return the name by which .npy is preferred, "" if it is not; and whether JSON is accepted."""
    qualities: dict[str, float] = {}
    for part in accept.lower().split(","):
        name, *parameters = (each.strip() for each in part.split(";"))
        qualities.setdefault(name, _quality(parameters))
    any_quality = max(qualities.get(name, 0.0) for name in _ANY)
    json_quality = qualities.get(_JSON, any_quality)
    named = [name for name in qualities if name in (*_NPY, _JSON) and qualities[name] > 0]
    # The names are in the client's order, which decides between those that it likes as much.
    best = max(named, key=qualities.__getitem__, default=_JSON)
    is_npy = best != _JSON and qualities[best] >= json_quality
    return (best if is_npy else ""), json_quality > 0


def _quality(parameters: list[str]) -> float:
    for each in parameters:
        if each.startswith("q="):
            try:
                return float(each[2:])
            except ValueError:
                return 0.0
    return 1.0


def _json(value: Any) -> bytes:
    try:
        text = _encode(value)
    except ValueError:  # of NaN or an infinity outside of arrays
        text = _encode(finite(as_lists(value)))
    return text.encode("utf-8", "backslashreplace")


def lists_in_json(value: Any) -> Any:
    """Return an array as lists and an exception as its body; the ``default`` of `json.dumps`."""
    if isinstance(value, Exception):
        return http_error(value).body
    found = as_lists(value)
    if found is value:
        raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
    return found


_encode = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=lists_in_json
).encode


def read_npy(body: bytes) -> Any:
    """
    Return the array in a .npy file that a client has sent; its rows are items for `predict`.

    The array is a view of the body, which cannot be changed. Bound the size of bodies in the
    web server or the framework: an array has as many bytes as its file.

    Args:
        body: The request's body, or an uploaded file.

    Raises:
        InvalidRow: It is no .npy file of numbers, times, texts or bytes; 400 for the client.
    """
    try:
        return decode_npy(body)
    except ValueError as error:
        raise InvalidRow(f"The body is no array: {error}") from None
