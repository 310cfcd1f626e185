"""What leaves and what is due, whatever happens on the way."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_batch.backfill.window import AHEAD, Answered, Row, Window


def rows(number):
    """Return so many rows."""
    return [Row(n, str(n), (n,)) for n in range(number)]


def answers(parcel):
    """Return an answer for each row of a parcel."""
    return [Answered(row, row.position) for row in parcel.rows]


def come(flight, parcel):
    """Have a parcel's answers come, and return the positions of those that are due then."""
    flight.arrived(answers(parcel))
    return [each.row.position for each in flight.due()]


def test_no_more_leaves_than_the_window_allows():
    """The input is read as far as there is room, and no further."""
    read = []
    source = (read.append(n) or Row(n, str(n), (n,)) for n in count())
    flight = Window(source, window=20, parcel=8)

    assert [8, 8] == [len(parcel) for parcel in flight.departures()]
    assert (16, 16) == (len(read), flight.flying)


def test_what_was_read_leaves_when_time_is_over():
    """A slow input holds up no row that is there: the rest is read another time."""
    flight = Window(rows(100), window=20, parcel=8)

    assert [1] == [len(parcel) for parcel in flight.departures(lambda: True)]
    assert flight.could_read
    assert [8, 8] == [len(parcel) for parcel in flight.departures()]
    assert not flight.could_read


def test_answers_come_in_the_inputs_order():
    """Who is answered early waits for those before it."""
    flight = Window(rows(4), window=4, parcel=2)
    first, second = flight.departures()

    assert [] == come(flight, second)
    assert [0, 1, 2, 3] == come(flight, first)
    assert list(flight.departures()) == []
    assert flight.is_over


def test_a_slow_parcel_holds_up_no_others():
    """What is answered behind it is kept, and the others' places are free for more."""
    flight = Window(rows(100), window=4, parcel=2)
    _, second = flight.departures()
    flight.arrived(answers(second))

    assert [[4, 5]] == [[row.position for row in each.rows] for each in flight.departures()]
    assert (4, 6) == (flight.flying, flight.held)


def test_no_more_is_kept_behind_a_slow_parcel_than_memory_allows():
    """Answers that wait for it are bounded in number, and the input waits, too."""
    flight = Window(rows(1000), window=4, parcel=2)
    slow, *flying = flight.departures()
    most = 0
    while flying:
        assert [] == come(flight, flying.pop())
        flying += flight.departures()
        most = max(most, flight.held)
    assert (AHEAD * 4, 2) == (most, flight.flying)

    assert list(range(AHEAD * 4)) == come(flight, slow)
    assert [2, 2] == [len(each) for each in flight.departures()]


def test_answers_come_as_they_are_known_if_that_is_wanted():
    """Without order nobody waits for others."""
    flight = Window(rows(4), window=4, parcel=2, in_order=False)
    _, second = flight.departures()

    assert [2, 3] == come(flight, second)


def test_a_parcel_that_falls_apart_leaves_row_by_row():
    """Where a parcel fails as a whole, each of its rows is tried by itself."""
    flight = Window(rows(3), window=3, parcel=3)
    (parcel,) = flight.departures()
    flight.fell_apart(parcel)

    singles = list(flight.departures())
    assert [(1, True)] * 3 == [(len(each), each.is_single) for each in singles]
    assert not flight.is_over


def test_a_lost_parcel_leaves_again():
    """What nobody has any more is sent again as it was."""
    flight = Window(rows(2), window=2, parcel=2)
    (parcel,) = flight.departures()
    flight.lost(parcel)

    assert [parcel] == list(flight.departures())


def test_an_empty_input_is_over_once_it_was_looked_at():
    """No rows, no parcels, and an end."""
    flight = Window([], window=2, parcel=2)

    assert [] == list(flight.departures())
    assert flight.is_over


@pytest.mark.parametrize("in_order", [True, False], ids=["in order", "as completed"])
@given(
    sizes=st.tuples(st.integers(0, 60), st.integers(1, 20), st.integers(1, 10)),
    fates=st.lists(st.sampled_from(["answered", "apart", "lost"]), max_size=60),
    choose=st.randoms(use_true_random=False),
)
def test_every_row_is_answered_once(in_order, sizes, fates, choose):
    """Whatever parcels' fates and rows' flaws, each comes once, in order if that is wanted."""
    number, window, parcel = sizes
    source = [Row(n, str(n), (n,), "bad" * choose.randrange(2)) for n in range(number)]
    flight = Window(source, window=window, parcel=parcel, in_order=in_order)
    flying, given_out, follow_up = [], [], iter(fates)
    while not flight.is_over:
        flying += flight.departures()
        assert flight.flying <= max(window, parcel)
        assert flight.held <= AHEAD * max(window, parcel)
        given_out += [each.row.position for each in flight.due()]
        if not flying:
            continue
        one = flying.pop(choose.randrange(len(flying)))
        match next(follow_up, "answered"):
            case "apart" if not one.is_single:
                flight.fell_apart(one)
            case "lost":
                flight.lost(one)
            case _:
                given_out += come(flight, one)

    assert (0, 0) == (flight.flying, flight.bytes)
    assert list(range(number)) == (given_out if in_order else sorted(given_out))


def test_heavy_rows_travel_in_small_parcels():
    """Brokers take no message of any size, so a few large rows are enough for one."""
    large = [Row(n, str(n), (b"x" * (3 << 20),)) for n in range(5)]
    flight = Window(large, window=100, parcel=50)

    assert [2, 2, 1] == [len(parcel) for parcel in flight.departures()]
    assert 5 == flight.flying


def large(number):
    """Return rows of a megabyte each."""
    return [Row(n, str(n), (b"x" * (1 << 20),)) for n in range(number)]


def test_no_more_leaves_than_memory_allows():
    """A window of many rows is small where they are large."""
    flight = Window(large(100), window=100, parcel=2, window_bytes=10 << 20)
    parcels = list(flight.departures())
    assert (10, 10 << 20) == (flight.flying, flight.bytes)

    assert [0, 1] == come(flight, parcels[0])
    assert [2] == [len(parcel) for parcel in flight.departures()]


@pytest.mark.parametrize("in_order", [True, False], ids=["in order", "as completed"])
def test_answers_that_wait_are_weighed(in_order):
    """What waits for others is in memory; what was given is not."""
    flight = Window(rows(4), window=4, parcel=2, in_order=in_order)
    first, second = flight.departures()
    flight.arrived([Answered(row, "x" * 1000) for row in second.rows])
    flight.due()
    assert (2032 if in_order else 16) == flight.bytes

    flight.arrived(answers(first))
    flight.due()
    assert 0 == flight.bytes


def test_rows_with_a_flaw_stay_where_they_are():
    """They are answered in their turn, without leaving, and no more are read than may be held."""
    source = [Row(n, str(n), (), flaw="bad" if n != 2 else "") for n in range(100)]
    flight = Window(source, window=10, parcel=4)
    (parcel,) = flight.departures()

    assert (2,) == tuple(row.position for row in parcel.rows)
    assert [(0, "bad"), (1, "bad")] == [(e.row.position, e.error) for e in flight.due()]
    assert flight.held <= AHEAD * 10
