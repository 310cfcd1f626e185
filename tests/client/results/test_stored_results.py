"""What a result says is what its backend would read in it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from celery import Celery
from celery.backends.redis import RedisBackend
from kombu.exceptions import ContentDisallowed, DecodeError

from celery_batch.client.results.meta import decode_meta

VALUES: dict[str, Any] = {
    "number": 1,
    "text": "\N{SNOWMAN} \x00",
    "nothing": None,
    "date": datetime(2040, 1, 2, tzinfo=UTC),
    "bytes": b"\xff",
    "nested": {"a": [{"b": 1.5}], "__type__": "no type"},
}


def backend_of(**conf: Any) -> Any:
    """Return a result backend with some settings."""
    return Celery(backend="redis://", set_as_current=False, changes=conf).backend


@pytest.mark.parametrize(
    "conf", [{}, {"result_compression": "gzip"}, {"result_serializer": "yaml"}]
)
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_values_are_the_backends(conf: dict[str, Any], value: Any):
    """Whatever was stored, and however, the same comes out."""
    backend = backend_of(accept_content=["json", "yaml"], **conf)
    stored = backend.encode({"status": "SUCCESS", "result": value})

    assert backend.decode(stored) == decode_meta(backend, stored)


def _same(one: Any, other: Any) -> bool:
    """Return whether two decoded values are the same, arrays by their bytes."""
    if isinstance(one, np.ndarray):
        is_alike = (one.dtype, one.shape) == (other.dtype, other.shape)
        return is_alike and one.tobytes() == other.tobytes() and other.flags.writeable
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return bool(one == other)


ARRAYS: tuple[Any, ...] = (
    np.arange(384, dtype="f4"),
    np.ones((2, 3), "?"),
    np.array(1.5),
    np.array([]),
    np.array(["a", "bc"]),
    np.zeros((1,) * 32),
    [np.arange(3), np.arange(2)],
    {"a": np.arange(3)},
)


@pytest.mark.parametrize("array", ARRAYS, ids=repr)
@pytest.mark.parametrize(
    "more", [{}, {"traceback": None, "children": []}, {"args": [np.ones(2)]}, VALUES], ids=len
)
def test_arrays_are_the_backends(array: Any, more: dict[str, Any]):
    """Whatever is stored with them."""
    backend = backend_of()
    for meta in ({"status": "SUCCESS", "result": array, **more}, {**more, "result": array}):
        stored = backend.encode(meta)
        assert _same(backend.decode(stored), decode_meta(backend, stored))


@pytest.mark.parametrize(
    "value",
    [
        '["<f4", [1], "AACAPw=="]',
        '["<f4", [1], "AACAPw=="], "more": 1',
        '["<f4", [1], "AACA\\u0050w=="]',
        '["<f4", [1], "AACA\\/w=="]',
        '["<f4", [2], "AACAPw=="]',
        '["<f4", [1], "AACAPw=="',
        '["<f4", [-1], "AACAPw=="]',
        '["|O", [1], "AACAPw=="]',
        '[["<f4"], "AACAPw=="]',
        '["<f4", "[1], "]',
        '["<f4", [1], "ä"]',
        "[]",
        "",
    ],
)
@pytest.mark.parametrize(
    "rest", ['}, "traceback": null}', "}}", "}, }", '}, "}', "", '}, "result": 1}']
)
def test_what_is_like_an_array_is_the_backends(value: str, rest: str):
    """The same comes out, or a value that cannot be decoded raises what the backend raises."""
    backend = backend_of()
    stored = f'{{"status": "SUCCESS", "result": {{"__type__": "ndarray", "__value__": {value}{rest}'
    try:
        wanted = backend.decode(stored.encode())
    except Exception as error:  # noqa: BLE001 (whatever it is)
        with pytest.raises(type(error)):
            decode_meta(backend, stored.encode())
    else:
        assert _same(wanted, decode_meta(backend, stored.encode()))


def test_what_is_no_json_is_said_in_the_backends_words():
    """A value that is cut off raises what the backend raises."""
    with pytest.raises(DecodeError):
        decode_meta(backend_of(), b'{"status": "SUCC')


def test_what_is_not_accepted_is_not_decoded():
    """An app that takes no JSON from its results takes none here."""
    with pytest.raises(ContentDisallowed):
        decode_meta(backend_of(result_accept_content=["yaml"]), b"{}")


def test_a_backend_that_decodes_for_itself_is_asked():
    """A backend with a way of its own to decode has its way."""

    class Sealed(RedisBackend):
        def decode(self, payload: bytes) -> Any:
            """Open the seal."""
            return super().decode(payload[::-1])

    backend = Sealed(app=Celery(set_as_current=False), url="redis://")

    assert [1] == decode_meta(backend, b"]1[")
    assert {} == decode_meta(backend, b"}{")
