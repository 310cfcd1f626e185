"""
A worker in virtual time: the batcher is the product's, only the clock and the model are not.

One process with two slots: one batch runs, a full one may be ready behind it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import exp, inf

from celery_batch.batching.batch import Batch, Request
from celery_batch.batching.batcher import Batcher, Wait
from celery_batch.batching.latency_target import TargetedQueue
from celery_batch.batching.policy import BatchPolicy

#: One batch runs, or its results are stored; one is ready behind it.
_SLOTS = 2

__all__ = ["VirtualModel", "VirtualWorker", "poisson"]


@dataclass(frozen=True, slots=True)
class VirtualModel:
    """How long calls take."""

    call: float = 0.008  # seconds of each call
    row: float = 0.001  # seconds of each row
    noise: float = 0.03  # the standard deviation of a duration's logarithm
    outliers: float = 0.0  # the part of the calls that take five times as long
    slower: Callable[[float], float] = lambda _now: 1.0  # times as long as that, at each time

    def seconds(self, rows: int, now: float, chance: random.Random) -> float:
        """Return the duration of a call that begins now."""
        usual = (self.call + self.row * rows) * self.slower(now)
        factor = 5.0 if chance.random() < self.outliers else 1.0
        return usual * factor * exp(chance.gauss(0.0, self.noise))


@dataclass
class VirtualWorker:
    """Runs requests, and records what became of them."""

    policy: BatchPolicy  # the task's; with a ``target_latency`` the worker keeps to it
    model: VirtualModel  # the task's
    gap: float = 0.001  # seconds from when a batch leaves to its call, if its process is idle
    store: float = 0.001  # seconds from the end of a call to the stored results
    jitter: float = 0.0  # more of these, on average
    seed: int = 1
    #: When each request was sent, and when its result was stored.
    answered: list[tuple[float, float]] = field(default_factory=list)
    #: When each refused request was sent, and by how much it would have been late.
    refused: list[tuple[float, float]] = field(default_factory=list)
    #: When each batch began, and how many rows it had.
    batches: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._batcher: Batcher[None] = Batcher(self.policy)
        self._target: TargetedQueue[None] | None = None
        if self.policy.target_latency is not None:
            self._target = TargetedQueue(self._batcher)
        self._chance = random.Random(self.seed)
        self._running: tuple[Batch[None], float, float] | None = None
        self._ready: Batch[None] | None = None
        #: Batches whose calls have ended, and when their results are stored.
        self._storing: deque[tuple[Batch[None], float, float]] = deque()
        self._ask_at = inf

    def run(self, arrivals: Iterable[float]) -> VirtualWorker:
        """Let requests arrive at these times, in order, and run all of them."""
        waiting = iter(arrivals)
        arrival = next(waiting, inf)
        while True:
            running, storing = self._running, self._storing
            call_ends = running[2] if running else inf
            stored = storing[0][2] if storing else inf
            now = min(arrival, call_ends, stored, self._ask_at)
            if now == inf:
                return self
            if storing and now == stored:
                self._note_stored(storing.popleft(), now)
            elif running and now == call_ends:
                self._end_call(running, now)
            elif now == arrival:
                self._add(Request(None, now))
                arrival = next(waiting, inf)
            self._dispatch(now)

    def _add(self, request: Request[None]) -> None:
        if self.policy.shed and self._target is not None:
            late = self._target.late_by(request, request.arrived)
            if late:
                self.refused.append((request.arrived, late))
                return
        self._batcher.add(request)

    def _dispatch(self, now: float) -> None:
        self._ask_at = inf
        while True:
            taken = sum(each is not None for each in (self._running, self._ready))
            taken += len(self._storing)
            if taken >= _SLOTS:
                return
            is_free = not taken
            decision = (self._target or self._batcher).next(now, full_only=not is_free)
            if not isinstance(decision, Batch):
                if isinstance(decision, Wait) and decision.seconds is not None:
                    self._ask_at = now + max(decision.seconds, 1e-9)
                return
            if is_free or self._running is None:
                self._start(decision, now + self.gap)
            else:
                self._ready = decision

    def _start(self, batch: Batch[None], began: float) -> None:
        seconds = self.model.seconds(batch.rows, began, self._chance)
        self._running = batch, began, began + seconds
        self.batches.append((began, batch.rows))

    def _end_call(self, running: tuple[Batch[None], float, float], now: float) -> None:
        batch, began, ended = running
        store = self.store + (self._chance.expovariate(1 / self.jitter) if self.jitter else 0.0)
        stored = max(now + store, self._storing[-1][2] if self._storing else 0.0)
        self._running = None
        self._storing.append((batch, ended - began, stored))
        ready, self._ready = self._ready, None
        if ready is not None:
            self._start(ready, now)

    def _note_stored(self, storing: tuple[Batch[None], float, float], now: float) -> None:
        batch, seconds, _ = storing
        self.answered += [(request.arrived, now) for request in batch.requests]
        if self._target is not None and batch.plan is not None:
            model = self._target.model
            model.observe(batch.rows, seconds, now)
            model.observe_overhead(self.gap + self.store, now)
            self._target.ended(batch.plan, now)
            limit = self.policy.target_latency or inf
            late = sum(now - request.arrived > limit for request in batch.requests)
            self._target.note_accepted(late / len(batch))
        if len(batch) > 1:
            self._batcher.batch_ended(now, batch.rows, batch.urgency)

    def within(self, target: float, since: float = 0.0, until: float = inf) -> float:
        """Return the part of the requests sent in a time whose results came within the target."""
        sent = [(at, end) for at, end in self.answered if since <= at < until]
        refused = sum(since <= at < until for at, _ in self.refused)
        good = sum(end - at <= target for at, end in sent)
        return good / max(len(sent) + refused, 1)


def poisson(rate: float, since: float, until: float, seed: int = 1) -> list[float]:
    """Return times of independent arrivals."""
    chance = random.Random(seed)
    times, now = [], since
    while (now := now + chance.expovariate(rate)) < until:
        times.append(now)
    return times
