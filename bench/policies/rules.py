"""
The rules by which servers form batches, for `celery_batch.tuning.simulate.run`.

Each is written anew from what the project's own source does; infinity's queue is the real one
where ``infinity_emb`` is installed. What is left out favours them: threads, polling, and the
batches that infinity forms ahead of its model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from statistics import linear_regression, mean
from typing import Any

from bench.policies.loads import CALL_COST
from celery_batch.batching.batch import Batch, Reason, Request
from celery_batch.batching.batcher import Batcher, Wait
from celery_batch.batching.cost import CallCost
from celery_batch.batching.policy import BatchPolicy

__all__ = ["RULES", "has_infinity"]

#: Rows of a batch where these are limited, and its cost where that is.
ROWS, COST = 32, 2048


class Rule:
    """What the simulation asks: first come, first served, in batches of so many rows."""

    def __init__(self) -> None:
        self.waiting: deque[Request[int]] = deque()

    def __len__(self) -> int:
        return len(self.waiting)

    def add(self, request: Request[int]) -> None:
        """Take a request that has just arrived."""
        self.waiting.append(request)

    def next(self, now: float) -> Batch[int] | Wait:  # noqa: ARG002 (other rules need it)
        """Decide what the server, which is idle, does now."""
        if not self.waiting:
            return Wait(None)
        return self._batch(min(ROWS, len(self.waiting)))

    def batch_ended(self, now: float, rows: int, urgency: int) -> None:
        """Hear that the batch before has ended."""

    def _batch(self, count: int) -> Batch[int]:
        taken = tuple(self.waiting.popleft() for _ in range(count))
        return Batch(taken, Reason.FULL)


class TokenBudget(Rule):
    """Text-embeddings-inference: first come until the longest times the texts is too much."""

    def next(self, now: float) -> Batch[int] | Wait:  # noqa: ARG002 (Rule's)
        """Decide what the server, which is idle, does now."""
        longest = count = 0
        for request in self.waiting:
            longest = max(longest, request.item)
            if count and longest * (count + 1) > COST:
                break
            count += 1
        return self._batch(count) if count else Wait(None)


class SortedWindow(Rule):
    """Infinity: eight batches' worth are taken, sorted by length, and served to the last."""

    _BATCHES = 8

    def __init__(self) -> None:
        super().__init__()
        self._sorted: deque[Batch[int]] = deque()
        self._left = 0

    def __len__(self) -> int:
        return len(self.waiting) + self._left

    def next(self, now: float) -> Batch[int] | Wait:  # noqa: ARG002 (Rule's)
        """Decide what the server, which is idle, does now."""
        if not self._sorted:
            self._sorted.extend(Batch(tuple(each), Reason.FULL) for each in self._pop())
            self._left = sum(map(len, self._sorted))
        if not self._sorted:
            return Wait(None)
        batch = self._sorted.popleft()
        self._left -= len(batch)
        return batch

    def _pop(self) -> list[list[Request[int]]]:
        count = min(self._BATCHES * ROWS, len(self.waiting))
        taken = [self.waiting.popleft() for _ in range(count)]
        if count > ROWS:
            taken.sort(key=lambda request: request.item)
        return [taken[at : at + ROWS] for at in range(0, count, ROWS)]


class RealSortedWindow(SortedWindow):
    """The same with ``infinity_emb``'s own queue."""

    def __init__(self) -> None:
        super().__init__()
        self._queue = import_module("infinity_emb.inference.queue").CustomFIFOQueue()
        self._item = import_module("infinity_emb.primitives").PrioritizedQueueItem

    def __len__(self) -> int:
        return len(self._queue) + self._left

    def add(self, request: Request[int]) -> None:
        """Take a request that has just arrived."""
        self._queue.extend([self._item(priority=request.item, item=_Inner(request))])

    def _pop(self) -> list[list[Request[int]]]:
        batches = self._queue.pop_optimal_batches(ROWS, self._BATCHES, timeout=0)
        return [[inner.request for inner in batch] for batch in batches]


class _Inner:
    """What infinity's queue looks at: whether somebody still waits for the answer."""

    def __init__(self, request: Request[int]) -> None:
        self.request = request
        self.future = self

    def done(self) -> bool:
        return False


class Adaptive(Rule):
    """
    BentoML: duration = a * texts + b is learnt, and a batch waits while that has paid before.

    It refuses the oldest requests where all that wait would take longer than the limit.
    """

    #: Seconds; the defaults of the project's services and dispatcher.
    _LONGEST_LATENCY, _TICK, _REFRESH = 60.0, 0.001, 5.0
    #: Calls from which it learns, at first without any wait, and the part of past waits.
    _SAMPLES, _FIRST, _DECAY = 50, 11, 0.95

    def __init__(self) -> None:
        super().__init__()
        self._per_text, self._per_call, self._wait = 2.0, 1.0, 0.0
        #: Texts, seconds that the first waited, and seconds of the call.
        self._samples: deque[tuple[int, float, float]] = deque(maxlen=self._SAMPLES)
        self._calls, self._next_refresh = 0, 0.0
        self._running: tuple[int, float, float] | None = None

    def next(self, now: float) -> Batch[int] | Wait:
        """Decide what the server, which is idle, does now."""
        if self._running is not None:
            rows, waited, began = self._running
            self._running = None
            self._learn(now, (rows, waited, now - began))
        is_trained = self._calls >= self._FIRST
        while is_trained and self._is_too_late(now):
            self.waiting.popleft()
        count = len(self.waiting)
        if not count:
            return Wait(None)
        newest = now - self.waiting[-1].arrived
        gap = newest + self._TICK + self._per_text
        if is_trained and count < ROWS and count * gap <= self._wait * self._DECAY:
            return Wait(self._TICK)
        waited = now - self.waiting[0].arrived if is_trained else 0.0
        batch = self._batch(min(ROWS, count))
        self._running = (len(batch), waited, now)
        return batch

    def _is_too_late(self, now: float) -> bool:
        if len(self.waiting) < 2:  # noqa: PLR2004 (the last one is always tried)
            return False
        work = self._per_text * len(self.waiting) + self._per_call
        return now - self.waiting[0].arrived + work >= self._LONGEST_LATENCY

    def _learn(self, now: float, sample: tuple[int, float, float]) -> None:
        self._samples.append(sample)
        self._calls += 1
        if self._calls >= self._FIRST and now < self._next_refresh:
            return
        self._next_refresh = now + self._REFRESH
        texts, waits, durations = zip(*self._samples, strict=True)
        self._wait = mean(waits)
        if len(set(texts)) > 1:
            slope, intercept = linear_regression(texts, durations)
            self._per_text, self._per_call = max(slope, 1e-6), max(intercept, 0.0)
        else:
            self._per_text, self._per_call = mean(durations) / texts[0], 0.0


def _ours(cost: int, max_wait: float = 0.0, rows: int = 1024) -> Batcher[int]:
    policy = BatchPolicy(rows, max_wait, max_batch_cost=cost, padded=True)
    return Batcher(policy, CallCost(CALL_COST))


def has_infinity() -> bool:
    """Return whether ``infinity_emb`` is installed."""
    return find_spec("infinity_emb") is not None


def _infinity() -> SortedWindow:
    return RealSortedWindow() if has_infinity() else SortedWindow()


#: Makes each, without any request.
RULES: dict[str, Callable[[], Any]] = {
    "first come, 32 rows": Rule,
    "TEI, 2,048 tokens": TokenBudget,
    "BentoML, 32 rows": Adaptive,
    "infinity, 32 rows": _infinity,
    "ours, 2,048 tokens": partial(_ours, COST),
    "the same, max_wait=0.01": partial(_ours, COST, 0.01),
    "ours, 8,192 tokens": partial(_ours, 4 * COST),
    "ours, 32 rows": partial(_ours, 4 * COST, rows=ROWS),
}
