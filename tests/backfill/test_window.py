"""Which rows are sent and which answers are returned, whatever happens."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_batch.backfill.window import MOST_WINDOWS, Answer, Limits, Row, Window


def rows(number):
    """Return so many rows."""
    return [Row(n, str(n), (n,)) for n in range(number)]


def answers(chunk):
    """Return an answer for each row of a chunk."""
    return [Answer(row, row.position) for row in chunk.rows]


def complete(window, chunk):
    """Add a chunk's answers, and return the positions of those that can be taken then."""
    window.add(answers(chunk))
    return [each.row.position for each in window.take_answers()]


def test_no_more_leaves_than_the_window_allows():
    """The input is read as far as there is room, and no further."""
    read = []
    source = (read.append(n) or Row(n, str(n), (n,)) for n in count())
    window = Window(source, Limits(window=20, chunk_size=8))

    assert [8, 8] == [len(chunk) for chunk in window.next_chunks()]
    assert (16, 16) == (len(read), window.pending)


def test_what_was_read_leaves_when_time_is_over():
    """A slow input holds up no row that is there: the rest is read another time."""
    window = Window(rows(100), Limits(window=20, chunk_size=8))

    assert [1] == [len(chunk) for chunk in window.next_chunks(lambda: True)]
    assert window.can_read
    assert [8, 8] == [len(chunk) for chunk in window.next_chunks()]
    assert not window.can_read


def test_answers_come_in_the_inputs_order():
    """An early answer waits for those before it."""
    window = Window(rows(4), Limits(window=4, chunk_size=2))
    first, second = window.next_chunks()

    assert [] == complete(window, second)
    assert [0, 1, 2, 3] == complete(window, first)
    assert list(window.next_chunks()) == []
    assert window.is_over


def test_a_slow_chunk_holds_up_no_others():
    """What is answered behind it is kept, and the others' places are free for more."""
    window = Window(rows(100), Limits(window=4, chunk_size=2))
    _, second = window.next_chunks()
    window.add(answers(second))

    assert [[4, 5]] == [[row.position for row in each.rows] for each in window.next_chunks()]
    assert (4, 6) == (window.pending, window.held)


def test_no_more_is_kept_behind_a_slow_chunk_than_memory_allows():
    """Answers that wait for it are bounded in number, and the input waits, too."""
    window = Window(rows(1000), Limits(window=4, chunk_size=2))
    slow, *sent = window.next_chunks()
    most = 0
    while sent:
        assert [] == complete(window, sent.pop())
        sent += window.next_chunks()
        most = max(most, window.held)
    assert (MOST_WINDOWS * 4, 2) == (most, window.pending)

    assert list(range(MOST_WINDOWS * 4)) == complete(window, slow)
    assert [2, 2] == [len(each) for each in window.next_chunks()]


def test_answers_come_as_they_are_known_if_that_is_wanted():
    """Without order no answer waits for others."""
    window = Window(rows(4), Limits(window=4, chunk_size=2, in_order=False))
    _, second = window.next_chunks()

    assert [2, 3] == complete(window, second)


def test_a_chunk_that_is_split_is_sent_row_by_row():
    """Where a chunk fails as a whole, each of its rows is tried by itself."""
    window = Window(rows(3), Limits(window=3, chunk_size=3))
    (chunk,) = window.next_chunks()
    window.split(chunk)

    singles = list(window.next_chunks())
    assert [(1, True)] * 3 == [(len(each), each.is_single) for each in singles]
    assert not window.is_over


def test_a_lost_chunk_is_sent_again():
    """A chunk that is in no broker and no worker is sent again as it was."""
    window = Window(rows(2), Limits(window=2, chunk_size=2))
    (chunk,) = window.next_chunks()
    window.resend([chunk])

    assert [chunk] == list(window.next_chunks())


def test_an_empty_input_is_over_once_it_was_looked_at():
    """No rows, no chunks, and an end."""
    window = Window([], Limits(window=2, chunk_size=2))

    assert [] == list(window.next_chunks())
    assert window.is_over


@pytest.mark.parametrize("in_order", [True, False], ids=["in order", "as completed"])
@given(
    sizes=st.tuples(st.integers(0, 60), st.integers(1, 20), st.integers(1, 10)),
    outcomes=st.lists(st.sampled_from(["answered", "split", "lost"]), max_size=60),
    choose=st.randoms(use_true_random=False),
)
def test_every_row_is_answered_once(in_order, sizes, outcomes, choose):
    """Whatever becomes of chunks and rows, each answer comes once, in order if wanted."""
    number, size, chunk_size = sizes
    source = [Row(n, str(n), (n,), "bad" * choose.randrange(2)) for n in range(number)]
    window = Window(source, Limits(window=size, chunk_size=chunk_size, in_order=in_order))
    sent, found, follow_up = [], [], iter(outcomes)
    while not window.is_over:
        sent += window.next_chunks()
        assert window.pending <= max(size, chunk_size)
        assert window.held <= MOST_WINDOWS * max(size, chunk_size)
        found += [each.row.position for each in window.take_answers()]
        if not sent:
            continue
        one = sent.pop(choose.randrange(len(sent)))
        match next(follow_up, "answered"):
            case "split" if not one.is_single:
                window.split(one)
            case "lost":
                window.resend([one])
            case _:
                found += complete(window, one)

    assert (0, 0) == (window.pending, window.bytes)
    assert list(range(number)) == (found if in_order else sorted(found))


def test_large_rows_are_sent_in_small_chunks():
    """Brokers take no message of any size, so a few large rows are enough for one."""
    large = [Row(n, str(n), (b"x" * (3 << 20),)) for n in range(5)]
    window = Window(large, Limits(window=100, chunk_size=50))

    assert [2, 2, 1] == [len(chunk) for chunk in window.next_chunks()]
    assert 5 == window.pending


def large(number):
    """Return rows of a megabyte each."""
    return [Row(n, str(n), (b"x" * (1 << 20),)) for n in range(number)]


def test_no_more_leaves_than_memory_allows():
    """A window of many rows is small where they are large."""
    window = Window(large(100), Limits(window=100, chunk_size=2, window_bytes=10 << 20))
    chunks = list(window.next_chunks())
    assert (10, 10 << 20) == (window.pending, window.bytes)

    assert [0, 1] == complete(window, chunks[0])
    assert [2] == [len(chunk) for chunk in window.next_chunks()]


@pytest.mark.parametrize("in_order", [True, False], ids=["in order", "as completed"])
def test_answers_that_wait_are_counted_in_bytes(in_order):
    """What waits for others is in memory; what was given is not."""
    window = Window(rows(4), Limits(window=4, chunk_size=2, in_order=in_order))
    first, second = window.next_chunks()
    window.add([Answer(row, "x" * 1000) for row in second.rows])
    window.take_answers()
    assert (2032 if in_order else 16) == window.bytes

    window.add(answers(first))
    window.take_answers()
    assert 0 == window.bytes


def test_rows_with_a_flaw_stay_where_they_are():
    """They are answered in their turn, without leaving, and no more are read than may be held."""
    source = [Row(n, str(n), (), flaw="bad" if n != 2 else "") for n in range(100)]
    window = Window(source, Limits(window=10, chunk_size=4))
    (chunk,) = window.next_chunks()

    assert (2,) == tuple(row.position for row in chunk.rows)
    assert [(0, "bad"), (1, "bad")] == [(e.row.position, e.error) for e in window.take_answers()]
    assert window.held <= MOST_WINDOWS * 10


def test_chunks_have_rows_of_one_key():
    """More is read at one go, so that they are not small; the order of the answers stays."""
    window = Window(rows(100), Limits(window=64, chunk_size=4), lambda row: row.position % 3)
    chunks = list(window.next_chunks())
    taken = [complete(window, chunk) for chunk in chunks]

    assert all(1 == len({row.position % 3 for row in chunk.rows}) for chunk in chunks)
    assert [4, 4, 3, 4, 4, 3, 4, 4, 2, 4] == [len(chunk) for chunk in chunks][:10]
    assert list(range(64)) == [position for each in taken for position in each]
