"""What a result says is what its backend would read in it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from celery import Celery
from celery.backends.redis import RedisBackend
from kombu.exceptions import ContentDisallowed, DecodeError

from celery_batch.client.results.result import decode_meta

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
