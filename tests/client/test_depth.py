"""What is known of a queue's depth, by looks at given times."""

from __future__ import annotations

import pytest

from celery_batch.client.depth import FRESH, Depth


def looked(*looks: tuple[float, int, int]) -> Depth:
    """Return what is known after looks: when, how many waited, how many were sent by then."""
    depth = Depth()
    for now, waiting, sent in looks:
        depth.add(sent - depth.items, sent - depth.messages)
        depth.note(waiting, now)
    return depth


def test_nothing_is_known_without_a_look() -> None:
    """Before the first look, however much was sent, nothing is known."""
    depth = Depth()
    depth.add(1000, 1000)

    assert depth.at(0.0) is None


def test_what_was_sent_since_the_look_counts() -> None:
    """A look's number grows by what this process has sent after it."""
    depth = looked((1.0, 7, 100))
    depth.add(5, 5)

    assert 12 == depth.at(1.01)


def test_a_look_grows_stale() -> None:
    """A look that is old says nothing any more."""
    depth = looked((1.0, 7, 0))

    assert 7 == depth.at(1.0 + FRESH)
    assert depth.at(1.01 + FRESH) is None


def test_the_rate_is_what_left_between_looks() -> None:
    """What was sent and is not there any more has left; that goes on until the next look."""
    depth = looked(*[(second / 20, 50, 5 * second) for second in range(400)])

    assert 100 == pytest.approx(depth.rate, rel=0.01)
    assert 48 == pytest.approx(depth.at(399 / 20 + 0.02), abs=0.1)


def test_a_batch_that_leaves_at_once_does_not_make_the_rate_leap() -> None:
    """Batches leave by the dozen: the rate is an average over some of them."""
    depth = looked(*[(second / 20, 100, second // 20 * 32) for second in range(400)])

    assert 32 == pytest.approx(depth.rate, rel=0.5)


def test_what_others_send_makes_the_rate_no_less_than_nothing() -> None:
    """A queue that others fill gives no rate below 0."""
    depth = looked((0.0, 0, 0), (0.1, 100, 0), (0.2, 200, 0))

    assert (0.0, 200) == (depth.rate, depth.at(0.2))


def test_the_depth_is_never_below_nothing() -> None:
    """However fast items left, fewer than none do not wait."""
    depth = looked(*[(second / 20, 0, 100 * second) for second in range(100)])

    assert 0.0 == depth.at(99 / 20 + 0.5)


def test_a_caller_is_told_how_long_what_must_leave_takes() -> None:
    """Who is refused is told a time by the rate, within bounds; else a second."""
    depth = looked(*[(second / 20, 50, 5 * second) for second in range(400)])
    now = 399 / 20

    assert 2.0 == pytest.approx(depth.seconds_until(200, now), rel=0.01)
    assert (0.05, 60.0) == (depth.seconds_until(1, now), depth.seconds_until(1e6, now))
    assert 1.0 == Depth().seconds_until(10, now)


def test_a_pause_begins_the_rate_anew() -> None:
    """Over a time without looks nothing is known of what left."""
    depth = looked((0.0, 50, 0), (0.1, 0, 0), (5.0, 0, 0))

    assert 0.0 == depth.rate


def test_a_chunk_is_many_items_and_one_message() -> None:
    """The rows of a chunk count until the next look, and not as if they had left."""
    depth = looked((0.0, 0, 0))
    depth.add(100, 1)
    counted = depth.at(0.01)
    depth.note(1, 0.05)

    assert (100, 1, 0.0) == (counted, depth.at(0.05), depth.rate)
