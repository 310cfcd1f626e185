"""What is known of a queue's depth, by measurements at given times."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from celery_batch.client.queue_depth import FRESH, Depth, Settled


def measured(*measurements: tuple[float, int, int]) -> Depth:
    """Return a depth after measurements: times, how many waited, how many were sent by then."""
    depth = Depth()
    for now, waiting, sent in measurements:
        more = sent - depth.items
        depth.admit(more, 1 << 30, now)
        depth.settle(more, more)
        depth.record(waiting, depth.settled, now)
    return depth


def test_calls_that_wait_too_long_for_a_measurement_are_admitted() -> None:
    """If no measurement comes for long although calls need one, the depth is not known."""
    depth = measured((1.0, 7, 0))
    depth.note_call(9.0)
    depth.note_call(9.5)

    assert 7 == depth.waiting(9.0 + FRESH)
    assert depth.waiting(9.01 + FRESH) is None


def test_a_broker_that_cannot_be_reached_leaves_the_limit_standing() -> None:
    """After a failure the count stays known, however long no measurement comes."""
    depth = measured((1.0, 0, 0))
    depth.note_call(1.1)
    depth.admit(10, 10, 1.1)
    depth.settle(10, 10)
    depth.is_unreachable = True
    doubted, later = depth.may_be_unreachable, depth.admit(1, 10, 1.1 + 2 * FRESH)
    depth.record(0, depth.settled, 9.0)

    assert (True, 10) == (doubted, later)
    assert (False, 0) == (depth.may_be_unreachable, depth.waiting(9.0))


def test_a_measurement_does_not_know_of_a_failure_that_came_later() -> None:
    """The broker may have gone since it was asked: only the next answer says that it is there."""
    depth = Depth()
    began = depth.settled
    depth.admit(1, 1, 0.0)
    depth.settle(1, 1, failures=1)
    depth.record(0, began, 0.1)
    doubted = depth.may_be_unreachable
    depth.record(0, depth.settled, 0.2)

    assert (True, False) == (doubted, depth.may_be_unreachable)


def test_what_a_measurement_may_have_missed_counts() -> None:
    """Items on their way during a measurement count until one that begins after they arrived."""
    depth = Depth()
    depth.admit(10, 10, 0.0)
    settled = depth.settled
    depth.settle(10, 10)
    depth.record(0, settled, 0.1)
    missed = depth.waiting(0.1)
    depth.record(0, depth.settled, 0.2)

    assert (10, 0) == (missed, depth.waiting(0.2))


def test_the_rate_is_what_left_between_measurements() -> None:
    """What was sent and is not there any more has left."""
    depth = measured(*[(second / 20, 50, 5 * second) for second in range(400)])

    assert 100 == pytest.approx(depth.rate, rel=0.01)


def test_what_left_before_makes_no_room_now() -> None:
    """However fast items left, what has not been seen to leave waits."""
    depth = measured(*[(second / 20, 50, 5 * second) for second in range(400)])

    assert 50 == depth.waiting(399 / 20 + 0.5)


def test_a_batch_that_leaves_at_once_does_not_make_the_rate_leap() -> None:
    """Batches leave by the dozen: the rate is an average over some of them."""
    depth = measured(*[(second / 20, 100, second // 20 * 32) for second in range(400)])

    assert 32 == pytest.approx(depth.rate, rel=0.5)


def test_what_others_send_makes_the_rate_no_less_than_nothing() -> None:
    """A queue that others fill gives no rate below 0."""
    depth = measured((0.0, 0, 0), (0.1, 100, 0), (0.2, 200, 0))

    assert (0.0, 200) == (depth.rate, depth.waiting(0.2))


def test_the_time_to_retry_follows_from_the_rate() -> None:
    """The time until there is room follows from the rate, within bounds; without one, a second."""
    depth = measured(*[(second / 20, 50, 5 * second) for second in range(400)])

    assert 2.0 == pytest.approx(depth.seconds_until(200), rel=0.01)
    assert (0.05, 60.0) == (depth.seconds_until(1), depth.seconds_until(1e6))
    assert 1.0 == Depth().seconds_until(10)


def test_a_chunk_is_many_items_and_one_message() -> None:
    """The rows of a chunk count until the next measurement, and not as if they had left."""
    depth = measured((0.0, 0, 0))
    depth.admit(100, 100, 0.01)
    depth.settle(100, 1)
    counted = depth.waiting(0.01)
    depth.record(1, depth.settled, 0.05)

    assert (100, 1, 0.0) == (counted, depth.waiting(0.05), depth.rate)


class Alone(RuleBasedStateMachine):
    """One process alone with a queue, whatever comes and leaves when."""

    MOST = 16

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.depth = Depth()
        self.queued = 0
        #: Admitted calls: on their way, and in the queue before their senders have the reply.
        self.leaving: list[int] = []
        self.arrived: list[int] = []
        #: What was settled when a measurement began, and what it has found.
        self.measurement: tuple[Settled, int | None] | None = None

    @rule(items=st.integers(1, 8), calls=st.integers(1, 20))
    def call(self, items: int, calls: int) -> None:
        """Some calls come, as many as it takes to fill the queue or not."""
        for _ in range(calls):
            self.depth.note_call(self.now)
            if self.depth.admit(items, self.MOST, self.now) is None:
                self.leaving.append(items)

    @precondition(lambda self: self.leaving)
    @rule()
    def arrive(self) -> None:
        """A message comes to the queue."""
        items = self.leaving.pop()
        self.queued += items
        self.arrived.append(items)

    @precondition(lambda self: self.leaving)
    @rule()
    def fail(self) -> None:
        """A message is lost on its way."""
        items = self.leaving.pop()
        self.depth.settle(items, items)

    @precondition(lambda self: self.arrived)
    @rule()
    def land(self) -> None:
        """The sender of a message has the broker's reply."""
        items = self.arrived.pop()
        self.depth.settle(items, items)

    @rule(most=st.integers(1, 64))
    def take(self, most: int) -> None:
        """A worker takes what there is, up to a number, all at once."""
        self.queued -= min(most, self.queued)

    @precondition(lambda self: self.measurement is None)
    @rule()
    def begin_to_measure(self) -> None:
        """A measurement begins."""
        self.measurement = (self.depth.settled, None)

    @precondition(lambda self: self.measurement is not None and self.measurement[1] is None)
    @rule()
    def count(self) -> None:
        """The broker counts what waits."""
        assert self.measurement is not None
        self.measurement = (self.measurement[0], self.queued)

    @precondition(lambda self: self.measurement is not None and self.measurement[1] is not None)
    @rule()
    def receive_answer(self) -> None:
        """The broker's answer comes."""
        assert self.measurement is not None
        settled, waiting = self.measurement
        assert waiting is not None
        self.measurement = None
        self.depth.record(waiting, settled, self.now)

    @rule(seconds=st.floats(0.0, 0.05))
    def wait(self, seconds: float) -> None:
        """Some time passes, with a measurement before it is too long without one."""
        if self.depth.waiting(self.now + seconds) is None:
            self.depth.record(self.queued, self.depth.settled, self.now)
            self.measurement = None
        self.now += seconds

    @precondition(lambda self: self.queued == 0 and self.measurement is None)
    @rule(seconds=st.floats(1.0, 100.0))
    def be_quiet(self, seconds: float) -> None:
        """No calls come for long, and the measured queue was empty."""
        self.depth.record(0, self.depth.settled, self.now)
        if self.depth.waiting(self.now) == 0:
            self.depth.reset()
            self.now += seconds

    @precondition(lambda self: not self.leaving and not self.arrived)
    @rule()
    def measure_at_rest(self) -> None:
        """Once nothing is on its way, a measurement is exact: no call is refused in vain."""
        self.measurement = None
        self.depth.record(self.queued, self.depth.settled, self.now)
        assert self.queued == self.depth.waiting(self.now)

    @invariant()
    def never_too_many(self) -> None:
        """What waits and what is on its way to it are never more than the limit."""
        assert self.queued + sum(self.leaving) <= self.MOST


TestAlone = Alone.TestCase
