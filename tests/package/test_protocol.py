"""The payload of a reply channel, which workers write and clients read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_batch.protocol import (
    FACTS_ID,
    LARGEST_PAYLOAD,
    LARGEST_VALUE,
    BatchInfo,
    about_batch,
    batch_facts,
    read_facts,
    read_replies,
    write_replies,
)

PAIRS = st.lists(st.tuples(st.text(), st.binary()))


def test_payload_is_a_row_of_netstrings():
    """Ids and values alternate, each with its length before it and a comma behind."""
    payloads = write_replies([("a-1", b'{"x": 1}'), ("b", "\u00e9"), ("", b"")])

    assert [b'3:a-1,8:{"x": 1},1:b,2:\xc3\xa9,0:,0:,'] == payloads


@given(PAIRS)
def test_what_is_written_is_read(pairs: list[tuple[str, bytes]]):
    """Whatever the ids and values hold, they come out as they went in, in order."""
    read = [pair for payload in write_replies(pairs) for pair in read_replies(payload)]

    assert pairs == read


def test_no_replies_are_no_payload():
    """An empty payload is not published."""
    assert [] == write_replies([])


def test_payloads_stay_small():
    """Large values are split over several payloads, since Redis disconnects clients that lag."""
    pairs = [(str(n), bytes(LARGEST_VALUE)) for n in range(20)]
    payloads = write_replies(pairs)

    assert pairs == [pair for payload in payloads for pair in read_replies(payload)]
    assert max(map(len, payloads)) <= LARGEST_PAYLOAD + 1000
    assert 7 == len(payloads)


def test_large_value_is_left_where_it_is():
    """A value that is too large to send is empty: the client reads it itself."""
    (payload,) = write_replies([("a", bytes(LARGEST_VALUE + 1)), ("b", b"small")])

    assert [("a", b""), ("b", b"small")] == read_replies(payload)


@pytest.mark.parametrize(
    "payload",
    [
        b"hello", b"1:a", b"1:a,", b"1:a,5:b,", b"1:a,1:b;", b"-1:,0:,", b"+1:a,1:b,",
        b"1:a,1:b,x", b":,0:,", b" 1:a,1:b,", b"99999999999:a,1:b,", b"1:\xff,1:b,",
    ],
)  # fmt: skip
def test_anything_else_is_refused(payload: bytes):
    """What is no row of pairs of netstrings is a ValueError, never half of an answer."""
    with pytest.raises(ValueError):  # noqa: PT011 (of several kinds)
        read_replies(payload)


@given(st.binary())
def test_no_bytes_do_harm(payload: bytes):
    """Any bytes are refused, or read as pairs of text and bytes."""
    try:
        read = read_replies(payload)
    except ValueError:
        return

    assert all(isinstance(name, str) and isinstance(value, bytes) for name, value in read)


@given(PAIRS.filter(bool), st.data())
def test_payload_cut_short_gives_no_wrong_value(
    pairs: list[tuple[str, bytes]], data: st.DataObject
):
    """A payload cut anywhere is refused, or read as the pairs before the cut."""
    (payload,) = write_replies(pairs)
    cut = payload[: data.draw(st.integers(0, len(payload) - 1))]
    try:
        read = read_replies(cut)
    except ValueError:
        return

    assert pairs[: len(read)] == read


ALIKE = batch_facts(32, 0.0125, "w@h\u00fctte\n")


@given(PAIRS.filter(bool))
def test_batch_is_told_once_and_waits_one_by_one(pairs: list[tuple[str, bytes]]):
    """Before the replies stands what is known of their batch; each finds its own wait there."""
    waits = [n / 4 for n in range(len(pairs))]
    (payload,) = write_replies(pairs, ALIKE, waits)
    (facts_id, said), *replies = read_replies(payload)

    assert (FACTS_ID, pairs) == (facts_id, replies)
    assert [BatchInfo(32, wait, 0.0125, "w@h\u00fctte\n") for wait in waits] == [
        read_facts(said, number) for number in range(len(pairs))
    ]


@pytest.mark.parametrize("padding", [None, 0.0, 0.25])
def test_no_padding_is_not_unknown_padding(padding: float | None):
    """A share of 0 is known; where none is, it is None."""
    facts = batch_facts(8, 0.5, "w", about=about_batch("full", padding))
    (payload,) = write_replies([("a", b"1")], facts, [0.5])
    (_, said), *_ = read_replies(payload)
    found = read_facts(said, 0)

    assert found is not None
    assert (padding, "full") == (found.padding, found.reason)


def test_every_payload_tells_of_its_own():
    """Where replies are split over payloads, each says of which batch they are."""
    pairs = [(str(n), bytes(LARGEST_VALUE)) for n in range(10)]
    payloads = write_replies(pairs, ALIKE, list(range(10)))
    waits = {}
    for payload in payloads:
        (_, said), *replies = read_replies(payload)
        for number, (name, _) in enumerate(replies):
            waits[name] = read_facts(said, number).wait

    assert len(payloads) > 1
    assert {str(n): n for n in range(10)} == waits


def test_who_knows_nothing_of_batches_hears_the_replies():
    """The facts are a pair like others, of an id that is no task's."""
    (payload,) = write_replies([("a", b"1")], ALIKE, [0.5])

    assert {"a": b"1"} == {name: value for name, value in read_replies(payload) if name == "a"}


@pytest.mark.parametrize(
    ("said", "number"),
    [
        (b"", 0), (b"x", 0), (ALIKE, 0), (b"{}\n\0\0\0\0", 0), (b"\n\0\0\0\0", 0),
        (ALIKE + b"\0\0\0\0", 1), (ALIKE + b"\0\0\0\0", -2), (ALIKE + b"\0\0\xc0\x7f", 0),
        (b'{"size": 1e999, "seconds": 1, "worker": ""}\n\0\0\0\0', 0),
        (b"[" * 100_000 + b"\n\0\0\0\0", 0),
    ],
    ids=lambda value: str(value)[:30],
)  # fmt: skip
def test_facts_that_cannot_be_read_are_none(said: bytes, number: int):
    """Unreadable facts, or facts of no reply, are None and no error."""
    assert read_facts(said, number) is None


@given(st.binary(), st.integers(0, 1000))
def test_no_facts_do_harm(said: bytes, number: int):
    """Any bytes are read as facts, or as nothing known."""
    assert isinstance(read_facts(said, number), BatchInfo | None)
