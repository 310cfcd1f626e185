"""JSON is decoded to what kombu makes of it, or fails as kombu fails."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.message import Message
from kombu.utils import json

from celery_batch.decoding import decode_json, payload_of

TYPED = [
    datetime(2026, 1, 2, 3, 4, 5),  # noqa: DTZ001 (as a task's argument may be)
    Decimal("1.5"),
    UUID(int=7),
    b"bytes",
    {"deep": [{"er": Decimal(1)}]},
]


@pytest.mark.parametrize("value", TYPED, ids=lambda value: type(value).__name__)
def test_typed_values_are_kombu_s(value: Any):
    """What JSON has no word for comes back as it was."""
    assert value == decode_json(json.dumps(value))


@pytest.mark.parametrize("letter", "_typebin", ids=str)
def test_disguised_typed_values_are_kombu_s(letter: str):
    """However the name of a type is spelt, what kombu would see in it is seen."""
    text = json.dumps(b"bytes").replace(letter, f"\\u{ord(letter):04x}")

    assert json.loads(text) == decode_json(text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_plain_values_are_kombu_s(value: Any):
    """Any value that JSON can write down is decoded to the same."""
    text = json.dumps(value)

    assert json.loads(text) == decode_json(text)


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (b"[[1], {}, {}]", {}),
        (b"[[1], {}", {}),
        (b"\xff\xfe", {}),
        (b"[" * 100_000, {}),
        (b"", {}),
        (b"[[1], {}, {}]", {"content_type": "text/plain"}),
        (b"[[1], {}, {}]", {"content_type": "application/x-python-serialize"}),
        (b"[[1], {}, {}]", {"accept": {"application/x-yaml"}}),
        (b"[[1], {}, {}]", {"accept": None}),
        ("[[1], {}, {}]", {}),
    ],
)
def test_bodies_are_kombu_s(body: Any, fields: dict[str, Any]):
    """The payload is the same, and so is the error."""
    usual = {"content_type": "application/json", "accept": {"application/json"}, **fields}
    ours, theirs = (Message(body, content_encoding="utf-8", **usual) for _ in range(2))

    assert outcome(lambda: theirs.payload) == outcome(lambda: payload_of(ours))


def outcome(decode: Any) -> tuple[str, str]:
    """Return what comes of decoding."""
    try:
        return "is", repr(decode())
    except Exception as error:  # noqa: BLE001 (whichever it is)
        return type(error).__name__, str(error)
