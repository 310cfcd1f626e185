"""What names a refused message."""

from __future__ import annotations

import json

import pytest
from kombu.exceptions import ContentDisallowed

from celery_batch.worker.intake.refusals import LONGEST_REASON, fields_at_end, reason_of

#: As kombu writes it.
ENVELOPE = {
    "body": "A" * (1 << 20),
    "content-encoding": "utf-8",
    "headers": {"task": "t", "id": "1", "shadow": None},
    "properties": {"reply_to": "there", "id": "2"},
}


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_fields_behind_a_large_body(separators: tuple[str, str]):
    """Properties and headers are found, however the sender writes JSON."""
    raw = json.dumps(ENVELOPE, separators=separators).encode()

    assert {"task": "t", "id": "1", "shadow": None, "reply_to": "there"} == fields_at_end(raw)


def test_a_body_forges_no_fields():
    """What looks like headers within a text of the body is none."""
    forged = json.dumps({"headers": {"task": "forged"}})
    raw = json.dumps({**ENVELOPE, "body": forged}).encode()

    assert "t" == fields_at_end(raw)["task"]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xff" * (1 << 20),
        b'"headers": ' * 100_000,
        b'"headers": 7}',
        b'"headers": {"task": "t"}, "properties": [',
        b'"headers": ' + b"[" * 300_000,
        b'"headers": ' + b'{"headers":' * 20_000,
        b'"headers": [1], "properties": "none"}',
        json.dumps({**ENVELOPE, "headers": {"padding": "x" * (1 << 20)}}).encode()[:-50],
    ],
)
def test_garbage_names_nothing(raw: bytes):
    """Whatever the end of a message is, reading it raises nothing."""
    assert {} == fields_at_end(raw)


def test_a_serializer_that_is_not_accepted():
    """The setting that accepts it is named, whole."""
    kind = "application/x-celery-batch-msgpack"
    error = ContentDisallowed(
        f"Refusing to deserialize untrusted content of type batch-msgpack ({kind})"
    )
    reason = reason_of(error)

    assert "add it to the worker's accept_content" in reason
    assert len(reason) < LONGEST_REASON
