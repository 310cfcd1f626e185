"""
What the batcher promises, whatever comes and whenever.

`Shell` asks as the real ones do: whenever a fact has changed, and again when the
time it was told has passed.  Hypothesis chooses the facts: who comes, how long
batches run, when the shell is busy elsewhere.  After every fact each promise is
checked against a plain account of who should be waiting.
"""

from __future__ import annotations

from collections import deque
from itertools import count

from hypothesis import example, given, settings
from hypothesis import strategies as st

from celery_batch.batching.batch import Batch, Reason
from celery_batch.batching.batcher import Batcher, Done, Wait
from celery_batch.batching.policy import BatchPolicy
from celery_batch.batching.request import Request
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
    st.tuples(st.sampled_from(["silence", "silence", "wait", "look_away"]), SHARES),
    st.tuples(st.just("finish"), st.sampled_from([1, 1, 2, 6])),
    st.tuples(st.just("answer"), st.sampled_from([2, 5, 30])),
    st.tuples(st.sampled_from(["wake", "wake", "wake", "give_back"]), st.none()),
)


@settings(max_examples=500, deadline=None)  # real time plays no part: a slow machine is no failure
@given(
    policy=POLICIES,
    slots=st.integers(min_value=1, max_value=3),
    now=st.floats(min_value=0, max_value=1e6),
    events=st.lists(EVENTS, min_size=10, max_size=60),
)
@example(policy=BatchPolicy(), slots=1, now=0.0, events=[])
def test_promises_hold_whatever_comes(
    policy: BatchPolicy, slots: int, now: float, events: list[tuple[str, float | None]]
):
    """
    Nobody is lost or leaves twice or out of turn, no batch is too large, no slot idles in vain.

    While a slot is free nobody waits longer than max_wait, counted once from the end of a
    crowd's batch, nor for longer than linger while nobody else comes, nor at all, unless told
    to, after a batch of one.
    """
    shell = Shell(policy, slots, now)
    for name, how_much in events:
        getattr(shell, name)(how_much)
        shell.check_line()
        shell.check_idle_slots()
    shell.close()


class Shell:
    """A worker on a manual clock, which holds the batcher to its promises."""

    def __init__(self, policy: BatchPolicy, slots: int, now: float) -> None:
        self.policy, self.slots, self.clock = policy, slots, ManualClock(now)
        self.batcher: Batcher[int] = Batcher(policy)
        self.line: deque[Request[int]] = deque()  # who should be waiting, oldest first
        self.names = count()
        self.left = 0
        self.in_flight = 0
        self.quiet_since = now
        self.crowd_at = 0.0
        self.has_company = True
        self.alarm: float | None = None
        self.draining = False

    def arrive(self, crowd: int) -> None:
        """Some come, all at once."""
        self.join([1] * crowd)

    def chunk(self, rows: int) -> None:
        """One request of many rows comes."""
        self.join([rows])

    def join(self, rows: list[int]) -> None:
        """Requests with so many rows get in line."""
        for each in rows:
            request = Request(next(self.names), arrived=self.clock(), rows=each)
            self.line.append(request)
            self.batcher.add(request)
        self.quiet_since = self.clock()
        self.ask()

    def silence(self, share: float) -> None:
        """Nobody comes for about as long as a slot lingers."""
        self.pass_time(share * self.policy.patience)

    def wait(self, share: float) -> None:
        """Nobody comes for about as long as anybody has to wait."""
        self.pass_time(share * self.policy.max_wait)

    def pass_time(self, seconds: float) -> None:
        """Nothing happens but what the batcher asked to be woken for."""
        end = self.clock() + seconds
        while self.alarm is not None and self.alarm <= end:
            self.wake()
        self.clock.advance(max(end - self.clock(), 0))

    def wake(self, _: None = None) -> None:
        """It is just the time that the batcher asked to be woken at."""
        if self.alarm is None:
            return
        self.clock.advance(max(self.alarm - self.clock(), 0))
        self.check_idle_slots()
        before = len(self.line)
        self.ask()

        assert len(self.line) < before or self.alarm - self.clock() < TOLERANCE, "woken for nothing"

    def look_away(self, share: float) -> None:
        """The shell is busy elsewhere, and knows that it cannot have seen anybody come."""
        self.clock.advance(share * self.policy.max_wait)
        self.batcher.looked_away(self.clock())
        self.quiet_since = self.clock()
        self.ask()

    def finish(self, batches: int) -> None:
        """Batches have run, their slots are free for the next."""
        self.in_flight = max(self.in_flight - batches, 0)
        self.ask()

    def answer(self, rows: int) -> None:
        """A batch of several has run, who may come again."""
        now = self.clock()
        self.batcher.group_ended(now, rows, urgency=0)
        self.quiet_since = now
        if self.line and 2 * self.rows < rows and self.line[0].arrived >= self.crowd_at:
            self.crowd_at = now
        self.finish(1)

    def give_back(self, _: None) -> None:
        """The connection is gone: everybody in line goes back where they came from."""
        assert list(self.line) == self.batcher.clear()

        self.left += len(self.line)
        self.line.clear()
        self.ask()

    def close(self) -> None:
        """Nobody else will come: in the end everybody has left."""
        self.draining = True
        self.batcher.drain()
        self.ask()
        while self.in_flight:
            self.check_idle_slots()
            self.finish(1)

        assert next(self.names) == self.left
        assert Done() == self.batcher.next(self.clock())

    def ask(self) -> None:
        """Ask on behalf of every slot with room, until there is nothing left to run now."""
        self.alarm = None
        while self.in_flight < self.slots * DEPTH:
            ahead = self.in_flight >= self.slots
            decision = self.batcher.next(self.clock(), ahead=ahead)
            if not isinstance(decision, Batch):
                self.check_wait(decision, ahead=ahead)
                return
            self.check_batch(decision, ahead=ahead)
            self.in_flight += 1

    def check_wait(self, decision: Wait | Done, *, ahead: bool) -> None:
        """A refusal to run says truly when to ask again, and asking costs nothing."""
        assert decision == self.batcher.next(self.clock(), ahead=ahead)
        assert isinstance(decision, Done) == (self.draining and not self.line)
        if isinstance(decision, Wait) and decision.seconds is not None:
            assert decision.seconds > 0
            self.alarm = self.clock() + decision.seconds
        else:
            assert ahead or not self.line, "somebody waits, and nobody will ask again"

    def check_batch(self, batch: Batch[int], *, ahead: bool) -> None:
        """A batch is the head of the line, all that fits of it, and leaves for a true reason."""
        size = self.policy.max_batch_size
        waiting, fits = self.rows, len(batch)

        assert fits > 0
        assert waiting >= size or fits == len(self.line)
        assert {
            Reason.FULL: waiting >= size,
            Reason.TIMEOUT: not ahead and self.age >= self.policy.max_wait - TOLERANCE,
            Reason.IDLE: not ahead and self.quiet_for >= self.patience - TOLERANCE,
            Reason.DRAINED: not ahead and self.draining,
        }[batch.reason]
        assert [self.line.popleft() for _ in range(fits)] == list(batch.requests)
        if self.line:  # and could not have taken one more, without another call of the model
            assert self.line[0].rows > -batch.rows % size

        self.left += fits
        self.has_company = fits > 1

    def check_line(self) -> None:
        """Nobody is in line who should not be, and nobody is missing."""
        assert (len(self.line), self.rows) == (len(self.batcher), self.batcher.rows)
        assert (self.line[0].arrived if self.line else None) == self.batcher.oldest

    def check_idle_slots(self) -> None:
        """No slot idles in vain, and no full batch waits where there is room behind a slot."""
        if not self.line or self.in_flight >= self.slots * DEPTH:
            return

        assert self.rows < self.policy.max_batch_size
        if self.in_flight < self.slots:
            assert not self.draining
            assert self.age <= self.policy.max_wait + TOLERANCE
            assert self.quiet_for <= self.patience + TOLERANCE

    @property
    def rows(self) -> int:
        """How many rows those in line have."""
        return sum(request.rows for request in self.line)

    @property
    def age(self) -> float:
        """Seconds since the oldest in line came, or since a crowd went that it waits for."""
        return self.clock() - max(self.line[0].arrived, self.crowd_at)

    @property
    def patience(self) -> float:
        """Seconds of silence after which a slot stops waiting."""
        expects_nobody = self.policy.linger is None and not self.has_company
        return 0.0 if expects_nobody else self.policy.patience

    @property
    def quiet_for(self) -> float:
        """Seconds for which nobody came who could have been seen."""
        return self.clock() - self.quiet_since
