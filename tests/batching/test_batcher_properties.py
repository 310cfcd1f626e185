"""
What the batcher promises, whatever comes and whenever.

The machine below is a shell as the real ones are: it asks whenever a fact has
changed, and again when the time it was told has passed.  Hypothesis chooses the
facts: who comes, how long batches run, when the shell is busy elsewhere.
"""

from __future__ import annotations

from collections import deque
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from celery_batch.batching.batch import Batch, Reason
from celery_batch.batching.batcher import Batcher, Done, Wait
from celery_batch.batching.policy import BatchPolicy
from celery_batch.batching.request import Request
from celery_batch.testing import ManualClock

#: What adding seconds to a clock that shows days may cost in float arithmetic.
TOLERANCE = 1e-9

#: Batches on their way per slot: one runs, one is ready behind it.
DEPTH = 2

SECONDS = st.sampled_from([0.0, 0.001, 0.002, 0.01]) | st.floats(min_value=0, max_value=0.05)
POLICIES = st.builds(
    BatchPolicy,
    max_batch_size=st.integers(min_value=1, max_value=6),
    max_wait=SECONDS,
    linger=st.none() | SECONDS,
)


class Shell(RuleBasedStateMachine):
    """A worker on a manual clock, which holds the batcher to its promises at every step."""

    @initialize(
        policy=POLICIES,
        slots=st.integers(min_value=1, max_value=3),
        now=st.floats(min_value=0, max_value=1e6),
    )
    def start(self, policy: BatchPolicy, slots: int, now: float):
        """Open an empty line in front of idle slots."""
        self.policy, self.slots, self.clock = policy, slots, ManualClock(now)
        self.batcher: Batcher[int] = Batcher(policy)
        self.line: deque[Request[int]] = deque()  # who should be waiting, oldest first
        self.names = count()
        self.left = 0
        self.in_flight = 0
        self.quiet_since = now
        self.alarm: float | None = None
        self.draining = False

    @precondition(lambda self: not self.draining)
    @rule(crowd=st.integers(min_value=1, max_value=9))
    def arrive(self, crowd: int):
        """Some come, all at once."""
        for _ in range(crowd):
            request = Request(next(self.names), arrived=self.clock())
            self.line.append(request)
            self.batcher.add(request)
        self.quiet_since = self.clock()
        self.ask()

    @rule(seconds=SECONDS)
    def pass_time(self, seconds: float):
        """Nothing happens but what the batcher asked to be woken for."""
        end = self.clock() + seconds
        while self.alarm is not None and self.alarm <= end:
            self.wake()
        self.clock.advance(max(end - self.clock(), 0))

    @precondition(lambda self: self.alarm is not None)
    @rule()
    def wake(self):
        """It is just the time that the batcher asked to be woken at."""
        self.clock.advance(max(self.alarm - self.clock(), 0))
        self.nobody_waits_in_vain()
        before = len(self.line)
        self.ask()
        if self.alarm is not None and len(self.line) == before:
            assert self.alarm - self.clock() < TOLERANCE, "woken for nothing"

    @rule(seconds=SECONDS)
    def look_away(self, seconds: float):
        """The shell is busy elsewhere, and knows that it cannot have seen anybody come."""
        self.clock.advance(seconds)
        self.batcher.looked_away(self.clock())
        self.quiet_since = self.clock()
        self.ask()

    @precondition(lambda self: self.in_flight > 0)
    @rule()
    def finish(self):
        """A batch has run, its slot is free for the next."""
        self.in_flight -= 1
        self.ask()

    @rule()
    def give_back(self):
        """The connection is gone: everybody in line goes back where they came from."""
        back = self.batcher.clear()

        assert list(self.line) == back

        self.left += len(back)
        self.line.clear()
        self.ask()

    @precondition(lambda self: not self.draining)
    @rule()
    def drain(self):
        """Nobody else will come."""
        self.draining = True
        self.batcher.drain()
        self.ask()

    @invariant()
    def line_is_known(self):
        """Nobody is in line who should not be, and nobody is missing."""
        assert len(self.line) == len(self.batcher)
        assert (self.line[0].arrived if self.line else None) == self.batcher.oldest

    @invariant()
    def nobody_waits_in_vain(self):
        """
        While a slot is free nobody waits beyond max_wait, nor in silence beyond linger.

        Whether a slot is free or only has room behind it, no full batch waits.
        """
        if not self.line or self.in_flight >= self.slots * DEPTH:
            return
        assert len(self.line) < self.policy.max_batch_size
        if self.in_flight < self.slots:
            assert self.age <= self.policy.max_wait + TOLERANCE
            assert self.silence <= self.policy.patience + TOLERANCE
            assert not self.draining

    def teardown(self):
        """In the end everybody has left, in order, once."""
        self.draining = True
        self.batcher.drain()
        while self.line:
            before = len(self.line)
            self.in_flight = 0
            self.ask()
            assert len(self.line) < before

        assert next(self.names) == self.left
        assert Done() == self.batcher.next(self.clock())

    def ask(self):
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

    def check_wait(self, decision: Wait | Done, *, ahead: bool):
        """A refusal to run says truly when to ask again, and asking costs nothing."""
        assert decision == self.batcher.next(self.clock(), ahead=ahead)
        assert isinstance(decision, Done) == (self.draining and not self.line)
        if isinstance(decision, Wait) and decision.seconds is not None:
            assert decision.seconds > 0
            self.alarm = self.clock() + decision.seconds
        else:
            assert ahead or not self.line, "somebody waits, and nobody will ask again"

    def check_batch(self, batch: Batch[int], *, ahead: bool):
        """A batch is the head of the line, within its size, and leaves for a true reason."""
        expected = [self.line[i] for i in range(min(len(batch), len(self.line)))]

        assert 1 <= len(batch) <= self.policy.max_batch_size
        assert expected == list(batch.requests)
        assert {
            Reason.FULL: len(batch) == self.policy.max_batch_size,
            Reason.DUE: not ahead and self.age >= self.policy.max_wait - TOLERANCE,
            Reason.QUIET: not ahead and self.silence >= self.policy.patience - TOLERANCE,
            Reason.DRAINED: not ahead and self.draining,
        }[batch.reason]
        # Who might have gone along is not left behind.
        assert len(batch) in (len(self.line), self.policy.max_batch_size)

        for _ in batch.requests:
            self.line.popleft()
        self.left += len(batch)

    @property
    def age(self) -> float:
        """Seconds since the oldest in line came."""
        return self.clock() - self.line[0].arrived

    @property
    def silence(self) -> float:
        """Seconds for which nobody came who could have been seen."""
        return self.clock() - self.quiet_since


# Real time plays no part, so a slow machine must not fail an example.
Shell.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestBatcher = Shell.TestCase
