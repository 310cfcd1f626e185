"""JSON is decoded to what kombu makes of it, or fails as kombu fails."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from celery import Celery
from celery.worker.request import Request
from hypothesis import given
from hypothesis import strategies as st
from kombu.message import Message
from kombu.transport.virtual import Base64
from kombu.utils import json

from celery_batch.serialization.decoding import (
    NOTHING_EMBEDDED,
    OnceDecoded,
    Undecoded,
    decode_arguments,
    decode_envelope,
    decode_envelopes,
    decode_json,
    leave_undecoded,
    payload_of,
)

#: The end of a body that embeds nothing.
NO_EMBED = ', {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'

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
        (f"[[1], {{}}{NO_EMBED}", {}),
        (f'[[1, {{"__type__": "bytes", "__value__": "YQ==", "x": 1}}], {{}}{NO_EMBED}', {}),
        (f"[{NO_EMBED}", {}),
        (f"[[1], {{}},{NO_EMBED}", {}),
        (f"[[1], {{}}]{NO_EMBED}", {}),
        (f'"a{NO_EMBED}', {}),
        (f'[["a{NO_EMBED}', {}),
    ],
)
def test_bodies_are_kombu_s(body: Any, fields: dict[str, Any]):
    """The payload is the same, and so is the error."""
    usual = {"content_type": "application/json", "accept": {"application/json"}, **fields}
    ours, theirs = (Message(body, content_encoding="utf-8", **usual) for _ in range(2))

    assert outcome(lambda: theirs.payload) == outcome(lambda: payload_of(ours))


def test_what_embeds_nothing_is_shared_and_unchanged():
    """It is as it was after the requests of messages with links, chains and chords."""
    signature = {"task": "next", "args": [], "kwargs": {}, "options": {}}
    embedded: list[dict[str, Any]] = [
        {},
        {"callbacks": [signature]},
        {"errbacks": [signature]},
        {"chain": [signature]},
        {"chord": signature},
        {},
    ]
    app = Celery(set_as_current=False)
    for each in embedded:
        body = json.dumps([[], {}, {**dict.fromkeys(NOTHING_EMBEDDED), **each}])
        headers = {"id": "an-id", "task": "sent", "lang": "py"}
        usual = {"content_type": "application/json", "accept": {"application/json"}}
        message = Message(body, headers=headers, content_encoding="utf-8", **usual)
        assert (payload_of(message)[2] is NOTHING_EMBEDDED) == (not each)
        request = Request(message, app=app, task=app.tasks["celery.accumulate"])
        assert request.chord == each.get("chord")

    assert NOTHING_EMBEDDED == json.loads(NO_EMBED[2:-1])


def outcome(decode: Any) -> tuple[str, str]:
    """Return what comes of decoding."""
    try:
        return "is", repr(decode())
    except Exception as error:  # noqa: BLE001 (whichever it is)
        return type(error).__name__, str(error)


LARGE = "x" * 100_000


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"body": LARGE, "headers": {"id": "a"}, "properties": {"priority": 0}}),
        json.dumps({"body": LARGE}),
        json.dumps({"headers": {}, "body": LARGE}),
        json.dumps({"body": f'{LARGE}"\\', "headers": {}}),
        json.dumps({"body": "ü" + LARGE}),
        json.dumps([LARGE]),
        '{"body": "' + LARGE,
        '{"body": "' + LARGE + '"',
        '{"body": "' + LARGE + '", "headers": {"id": }}',
        '{"body": "' + LARGE + '"} and more',
        '{"body": "short"}',
    ],
)
def test_envelopes_are_kombu_s(text: str):
    """A message with a large body is what kombu makes of it, or an error where it has one."""
    for raw in (text, text.encode()):
        assert (
            outcome(lambda: json.loads(text))[:2]
            == outcome(lambda raw=raw: decode_envelope(raw))[:2]
        )


def large(body: Any, **fields: Any) -> Message:
    """Return a message with this body."""
    usual = {"content_type": "application/json", "accept": {"application/json"}}
    return Message(body, content_encoding="utf-8", **{**usual, **fields})


@pytest.mark.parametrize("kind", [str, str.encode])
def test_a_large_body_may_stay_undecoded(kind: Any):
    """Something stands for its payload then, and what is in it can be had all the same."""
    message = large(kind(json.dumps([[LARGE], {"y": 1}, None])))

    assert leave_undecoded(message)
    assert Undecoded is type(message.payload)
    assert ([LARGE], {"y": 1}, {}) == decode_arguments(message)


@pytest.mark.parametrize(
    "message",
    [
        large(json.dumps([[1], {}, None])),
        large(json.dumps({"args": [LARGE], "kwargs": {}})),
        large(json.dumps([[LARGE], {}, None]), content_type="application/x-yaml"),
        large(json.dumps([[LARGE], {}, None]), accept={"application/x-yaml"}),
        large(None),
    ],
    ids=["small", "older protocol", "no JSON", "not accepted", "no body"],
)
def test_other_bodies_are_decoded_where_they_come(message: Message):
    """What is small, or no JSON of the current protocol, is left to kombu."""
    assert not leave_undecoded(message)


@pytest.mark.parametrize(
    "body", ["[" * 100_000, "[1, 2" + " " * 100_000 + "]", f'["{LARGE}", {{}}, []]']
)
def test_nothing_is_in_a_body_that_cannot_be_decoded(body: str):
    """Its parts are empty where they are read on the way to an error."""
    assert ([], {}, {}) == decode_arguments(large(body))


def test_a_large_body_is_unpacked_once(monkeypatch: pytest.MonkeyPatch):
    """Two calls in a row with the same text get the same value, and nothing is kept after that."""
    codec, unpacked = Base64(), []
    own = codec.decode
    monkeypatch.setattr(codec, "decode", lambda text: unpacked.append(text) or own(text))
    once = OnceDecoded(codec)
    text = once.encode(LARGE.encode())

    assert LARGE.encode() == once.decode(text) == once.decode(text)
    assert [text] == unpacked
    assert LARGE.encode() == once.decode(text)
    assert 2 == len(unpacked)


#: Texts of which messages of a hostile client may be put together.
PIECES = [
    '{"a": 1}',
    '{"b": "c"}',
    "[",
    "]",
    ",",
    '"',
    "\\",
    " ",
    "}",
    '"\\u00e9"',
    '"\\u0061"',
    "1",
]


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=4).map("".join), max_size=4))
def test_no_message_changes_what_is_decoded_with_it(texts: list[str]):
    """What is decoded at all is what it would be by itself, however the others begin and end."""
    raws = [text.encode() for text in texts]
    found = decode_envelopes(raws, None)

    assert len(raws) == len(found)
    for raw, envelope in zip(raws, found, strict=True):
        assert envelope is None or json.loads(raw) == envelope


def test_messages_share_the_names_of_their_fields():
    """They are half of what a small message takes."""
    raws = [json.dumps({"headers": {f"a {name}": n}}).encode() for n, name in enumerate("bbb")]
    found = decode_envelopes(raws, None)
    names = {id(name) for envelope in found for name in envelope["headers"]}

    assert [json.loads(raw) for raw in raws] == found
    assert 1 == len(names)


@pytest.mark.parametrize(
    ("raws", "largest", "expected"),
    [
        ([], None, []),
        ([b"{}"], None, [None]),
        ([b"{}", b'{"a": 1}', b"[]"], 4, [{}, None, []]),
        ([b"{}", b" " * 70_000, b"[]"], None, [{}, None, []]),
        ([b"{}", b'{"a": 1'], None, [None, None]),
        ([b"{}", b"{}] []"], None, [None, None]),
        ([b"{}", b"\xff"], None, [None, None]),
        ([b"{}", b"[" * 100_000], 200_000, [None, None]),
        ([b"{}", b"[" * 50_000], None, [None, None]),
        ([b"{}", json.dumps({"a": b"bytes"}).encode()], None, [None, None]),
    ],
)
def test_other_messages_are_decoded_by_themselves(raws: Any, largest: Any, expected: Any):
    """The only one, too large ones, and all if one is no JSON or has values of kombu's types."""
    assert expected == decode_envelopes(raws, largest)
