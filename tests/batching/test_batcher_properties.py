"""
What the batcher promises, for any sequence of events.

`Worker` asks as real workers do: whenever something has changed, and again when the
time that the batcher named has passed.  Hypothesis chooses the events: arrivals, ends of
batches, and times at which the worker is busy elsewhere.  After every event each promise
is checked against a plain list of the requests that should be waiting.
"""

from __future__ import annotations

import os
from collections import deque
from itertools import count

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from celery_batch.batching.batch import Batch, Reason, Request
from celery_batch.batching.batcher import Batcher, Wait
from celery_batch.batching.keyed_batcher import KeyedBatcher
from celery_batch.batching.policy import BatchPolicy
from celery_batch.testing import ManualClock

#: What adding seconds to a clock that shows days may cost in float arithmetic.
TOLERANCE = 1e-9

#: Batches on their way per slot: one runs, one is ready behind it.
DEPTH = 2

#: A linger of 0, of any part of `max_wait`, longer than it, or the default.
POLICIES = st.builds(
    lambda size, max_wait, share: BatchPolicy(size, max_wait, share and share * max_wait),
    st.integers(min_value=1, max_value=9),
    st.sampled_from([0.0, 0.01, 0.05, 60.0]),
    st.sampled_from([0.2, 0.5]) | st.sampled_from([0.0, 1.0, 2.0, None]),
)

#: Shares of the policy's own times, so that things happen about when it matters.
SHARES = st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]) | st.floats(min_value=0, max_value=1.5)

#: What may happen, and how much of it.
EVENTS = st.one_of(
    st.tuples(st.just("arrive"), st.just(1)),
    st.tuples(st.just("arrive"), st.sampled_from([1, 2, 3, 20])),
    st.tuples(st.just("chunk"), st.integers(min_value=1, max_value=30)),
    st.tuples(st.sampled_from(["idle", "idle", "wait", "be_busy"]), SHARES),
    st.tuples(st.just("finish"), st.sampled_from([1, 1, 2, 6])),
    st.tuples(st.just("answer"), st.sampled_from([2, 5, 30])),
    st.tuples(st.sampled_from(["wake", "wake", "wake", "give_back"]), st.none()),
)


#: Each run draws new ones.
_EXAMPLES = 500 if "THOROUGH" in os.environ else 200


@pytest.mark.no_cover
@settings(
    max_examples=_EXAMPLES, deadline=None
)  # real time plays no part: a slow machine is no failure
@given(
    batcher=st.sampled_from([Batcher, KeyedBatcher]),
    policy=POLICIES,
    slots=st.integers(min_value=1, max_value=3),
    now=st.floats(min_value=0, max_value=1e6),
    events=st.lists(EVENTS, min_size=10, max_size=60),
)
@example(batcher=Batcher, policy=BatchPolicy(), slots=1, now=0.0, events=[])
def test_promises_hold_for_any_events(
    batcher: type[Batcher[int] | KeyedBatcher[int]],
    policy: BatchPolicy,
    slots: int,
    now: float,
    events: list[tuple[str, float | None]],
):
    """
    No request is lost, leaves twice or out of order; no batch is too large; no slot idles in vain.

    While a slot is free no request waits for longer than max_wait, counted once from the end of
    a larger batch, nor for longer than linger after the last arrival, nor at all after a batch
    of one unless linger is set.  All that holds for requests of one key as well.
    """
    worker = Worker(batcher(policy), slots, now)
    for name, how_much in events:
        getattr(worker, name)(how_much)
        worker.check_queue()
        worker.check_idle_slots()
    worker.close()


class Worker:
    """A worker on a manual clock, which checks the batcher's promises."""

    def __init__(self, batcher: Batcher[int] | KeyedBatcher[int], slots: int, now: float) -> None:
        self.policy, self.slots, self.clock = batcher.policy, slots, ManualClock(now)
        self.batcher = batcher
        self.waiting: deque[Request[int]] = (
            deque()
        )  # the requests that should be waiting, oldest first
        self.names = count()
        self.left = 0
        self.in_flight = 0
        self.linger_from = now
        self.wait_from = 0.0
        self.had_several = True
        self.alarm: float | None = None

    def arrive(self, count: int) -> None:
        """Some requests arrive together."""
        self.join([1] * count)

    def chunk(self, rows: int) -> None:
        """One request with many rows arrives."""
        self.join([rows])

    def join(self, rows: list[int]) -> None:
        """Requests with these numbers of rows arrive."""
        for each in rows:
            request = Request(next(self.names), arrived=self.clock(), rows=each)
            self.waiting.append(request)
            self.batcher.add(request)
        self.linger_from = self.clock()
        self.ask()

    def idle(self, share: float) -> None:
        """No request arrives for about as long as a slot lingers."""
        self.pass_time(share * self.policy.linger_seconds)

    def wait(self, share: float) -> None:
        """No request arrives for about max_wait."""
        self.pass_time(share * self.policy.max_wait)

    def pass_time(self, seconds: float) -> None:
        """Time passes, and the batcher is asked at the times it named."""
        end = self.clock() + seconds
        while self.alarm is not None and self.alarm <= end:
            self.wake()
        self.clock.advance(max(end - self.clock(), 0))

    def wake(self, _: None = None) -> None:
        """The time that the batcher named has come."""
        if self.alarm is None:
            return
        self.clock.advance(max(self.alarm - self.clock(), 0))
        self.check_idle_slots()
        before = len(self.waiting)
        self.ask()

        assert len(self.waiting) < before or self.alarm - self.clock() < TOLERANCE, (
            "woken for nothing"
        )

    def be_busy(self, share: float) -> None:
        """The worker is busy elsewhere, and knows that it cannot have seen arrivals."""
        self.clock.advance(share * self.policy.max_wait)
        self.batcher.restart_linger(self.clock())
        self.linger_from = self.clock()
        self.ask()

    def finish(self, batches: int) -> None:
        """Batches have run, and their slots are free."""
        self.in_flight = max(self.in_flight - batches, 0)
        self.ask()

    def answer(self, rows: int) -> None:
        """A batch of several has run, whose callers may call again."""
        now = self.clock()
        self.batcher.batch_ended(now, rows, urgency=0)
        self.linger_from = now
        if self.waiting and 2 * self.rows < rows and self.waiting[0].arrived >= self.wait_from:
            self.wait_from = now
        self.finish(1)

    def give_back(self, _: None) -> None:
        """The connection is lost: all waiting requests go back."""
        assert list(self.waiting) == self.batcher.clear()

        self.left += len(self.waiting)
        self.waiting.clear()
        self.ask()

    def close(self) -> None:
        """No more requests come: in the end all have left."""
        self.wait(2.0)
        while self.in_flight:
            self.check_idle_slots()
            self.finish(1)

        assert next(self.names) == self.left
        assert Wait(None) == self.batcher.next(self.clock())

    def ask(self) -> None:
        """Ask for every slot with room, until there is no batch to run now."""
        self.alarm = None
        while self.in_flight < self.slots * DEPTH:
            full_only = self.in_flight >= self.slots
            decision = self.batcher.next(self.clock(), full_only=full_only)
            if not isinstance(decision, Batch):
                self.check_wait(decision, full_only=full_only)
                return
            self.check_batch(decision, full_only=full_only)
            self.in_flight += 1

    def check_wait(self, decision: Wait, *, full_only: bool) -> None:
        """Without a batch, the batcher says when to ask again, and asking changes nothing."""
        assert decision == self.batcher.next(self.clock(), full_only=full_only)
        if decision.seconds is not None:
            assert decision.seconds > 0
            self.alarm = self.clock() + decision.seconds
        else:
            assert full_only or not self.waiting, "a request waits, with no time to ask again"

    def check_batch(self, batch: Batch[int], *, full_only: bool) -> None:
        """A batch is the front of the queue, all of it that fits, and has the right reason."""
        size = self.policy.max_batch_size
        waiting, fits = self.rows, len(batch)

        assert fits > 0
        assert waiting >= size or fits == len(self.waiting)
        assert {
            Reason.FULL: waiting >= size,
            Reason.TIMEOUT: not full_only and self.age >= self.policy.max_wait - TOLERANCE,
            Reason.IDLE: not full_only and self.idle_for >= self.linger - TOLERANCE,
        }[batch.reason]
        assert [self.waiting.popleft() for _ in range(fits)] == list(batch.requests)
        if self.waiting:  # and could not have taken one more, without another call of the model
            assert self.waiting[0].rows > -batch.rows % size

        self.left += fits
        self.had_several = fits > 1

    def check_queue(self) -> None:
        """Exactly the expected requests wait."""
        assert (len(self.waiting), self.rows) == (len(self.batcher), self.batcher.rows)
        assert (self.waiting[0].arrived if self.waiting else None) == self.batcher.oldest

    def check_idle_slots(self) -> None:
        """No slot idles in vain, and no full batch waits while there is room behind a slot."""
        if not self.waiting or self.in_flight >= self.slots * DEPTH:
            return

        assert self.rows < self.policy.max_batch_size
        if self.in_flight < self.slots:
            assert self.age <= self.policy.max_wait + TOLERANCE
            assert self.idle_for <= self.linger + TOLERANCE

    @property
    def rows(self) -> int:
        """How many rows the waiting requests have."""
        return sum(request.rows for request in self.waiting)

    @property
    def age(self) -> float:
        """Seconds since the oldest arrived, or since the batch ended whose callers it awaits."""
        return self.clock() - max(self.waiting[0].arrived, self.wait_from)

    @property
    def linger(self) -> float:
        """Seconds without an arrival after which a slot stops waiting."""
        expects_more = self.policy.linger is not None or self.had_several
        return self.policy.linger_seconds if expects_more else 0.0

    @property
    def idle_for(self) -> float:
        """Seconds without an arrival that could have been seen."""
        return self.clock() - self.linger_from
