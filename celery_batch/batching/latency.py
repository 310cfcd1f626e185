"""
How long the batches of a task take, and which of them keep a latency target.

Rule 1: a batch takes a + b * work seconds, and its results are stored some seconds later.  Both
        are learnt from the batches that ran; the last ones count most.
Rule 2: a batch that takes far longer or shorter than expected is left out, unless three in a
        row do so in the same direction: then the speed of the model has changed. Of a size that
        was not seen before, all is expected that some a and b explain.
Rule 3: until enough batches are known, nothing is limited.
Rule 4: a batch is at most so large that it keeps the target if it leaves at once.  A lower
        limit would gain nothing: what it leaves behind waits for one batch more, and smaller
        batches do less work in a second.  Only where less urgent requests fill batches up, two
        of them must keep the target, since an urgent request may have to wait for one.
Rule 5: where the oldest request is late in any case, or no batch is fast enough, batches are as
        large as the policy allows: this ends the backlog soonest.
Rule 6: the oldest request stops waiting for others while a batch as large as they usually are
        can still keep the target.
Rule 7: a request cannot make it if it is late once all that runs or goes before it has run, in
        batches as large as they may be; or if the oldest of its batch is late because of it.
        Where more than one in twenty is late that was not expected to be, more is refused.
Rule 8: behind a running batch, one that is not full leaves just before that ends, with all that
        wait: the process finds it as soon as it is free.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from math import ceil, inf, sqrt
from statistics import median
from typing import Any, Generic, TypeVar

from celery_batch.batching.batch import Batch, Limit, Plan, Reason, Request, Why
from celery_batch.batching.batcher import ALL, Batcher, Done, Wait
from celery_batch.batching.cost import Load
from celery_batch.batching.keyed_batcher import KeyedBatcher
from celery_batch.batching.policy import BatchPolicy
from celery_batch.batching.shapes import most_rows, round_up

__all__ = ["LatencyModel", "LatencyTarget", "TargetedQueue"]

T = TypeVar("T")

#: The weight of what was known before, at each batch.
_KEPT = 0.98

#: Batches after which the model is known.
_ENOUGH = 8

#: How many batches are looked at for what is usual.
_RECENT = 64

#: The part of recent batches that are faster than a slow one.
_SLOW = 0.95

#: The slowness of a slow batch while too few are known.
_UNKNOWN_SLOWNESS = 1.25

#: A batch that takes so many times what was expected, or as little, is left out.
_FAR = 1.5

#: So many of these in a row mean that the speed has changed.
_IN_A_ROW = 3

#: The part by which sizes must differ to say more than is known about the slope.
_PRIOR = 0.05

#: So many times as far from the usual size as others are, a size is one that was not seen before.
_UNLIKE = 2.0

#: The change of the limit that is worth a new policy.
_NOTICEABLE = 0.1

#: Seconds for which requests of a higher urgency are expected again.
_URGENT_AGAIN = 10.0

#: The smallest part of the largest batch in time, where two have to be.
_MOST_PARTS = 4

#: The part of accepted requests that may be late.
_LATE = 0.05

#: The change of the margin for accepted requests if all of a batch were late, and the largest
#: margin, as parts of the target.
_MARGIN_STEP, _MOST_MARGIN = 0.05, 0.5

#: The part of what batches are usually padded to that the latest one decides.
_LATEST = 0.1

#: A duration that is no division by zero.
_SHORTEST = 1e-9


class LatencyModel:
    """
    The duration of batches as a function of their work.

    Seconds are those of one call of the model; work is its rows, or its cost with padding.
    """

    def __init__(self) -> None:
        #: Seconds of a call, and of each unit of work in it.
        self.a = self.b = 0.0
        #: How many batches were observed.
        self.batches = 0
        #: Seconds between a process and its model, before and after a batch.
        self.overhead = 0.0
        #: How many times its expected duration a slow batch takes.
        self.slowness = _UNKNOWN_SLOWNESS
        self._weight = self._work = self._seconds = self._squares = self._products = 0.0
        self._ratios: deque[float] = deque(maxlen=_RECENT)
        self._overheads: deque[float] = deque(maxlen=_RECENT)
        self._far: list[float] = []

    @property
    def is_known(self) -> bool:
        """Whether enough batches were observed."""
        return self.batches >= _ENOUGH

    @property
    def usual_work(self) -> float:
        """The work of a batch on average, of late."""
        return self._work / self._weight if self._weight else 0.0

    def expected(self, work: float) -> float:
        """Return how long a call takes."""
        return self.a + self.b * work

    def slow(self, work: float) -> float:
        """Return the seconds until the results of a slow batch are stored."""
        return self.slowness * self.expected(work) + self.overhead

    def largest(self, seconds: float) -> float:
        """Return the work of the largest batch that is stored so soon, even if it is slow."""
        left = (seconds - self.overhead) / self.slowness - self.a
        if left <= 0:
            return 0.0
        return left / self.b if self.b else inf

    def observe(self, work: float, seconds: float) -> None:
        """
        Learn from a call that went as calls go.

        Args:
            work: Its work, above 0.
            seconds: How long it took.
        """
        if self.is_known and not self._is_usual(seconds / self._plausible(work, seconds)):
            return
        self.batches += 1
        self._weight = _KEPT * self._weight + 1
        self._work = _KEPT * self._work + work
        self._seconds = _KEPT * self._seconds + seconds
        self._squares = _KEPT * self._squares + work * work
        self._products = _KEPT * self._products + work * seconds
        self._fit()

    def observe_overhead(self, seconds: float) -> None:
        """Learn how long a batch was with its process, but not in the model."""
        self._overheads.append(seconds)
        self.overhead = _quantile(self._overheads)

    def _plausible(self, work: float, seconds: float) -> float:
        """
        Return the expected duration that comes nearest to the one that was observed.

        Of work unlike all that was seen, only the bounds are known: it takes as long as the usual
        work, or in proportion to it.
        """
        usual, low = self.usual_work, self.expected(work)
        high = low
        if abs(work - usual) > _UNLIKE * self._spread:
            low, high = sorted((self.expected(usual), self.expected(usual) * work / usual))
        return max(min(max(seconds, low), high), _SHORTEST)

    @property
    def _spread(self) -> float:
        """By how much sizes differ."""
        variance = self._squares / self._weight - self.usual_work**2
        return sqrt(max(variance, 0.0)) + _PRIOR * self.usual_work

    def _is_usual(self, ratio: float) -> bool:
        """Return whether a duration is to be learnt from, given its ratio to the expected one."""
        self._ratios.append(ratio)
        if len(self._ratios) >= _ENOUGH:
            self.slowness = max(_quantile(self._ratios), 1.0)
        if 1 / _FAR < ratio < _FAR:
            self._far.clear()
            return True
        if self._far and (self._far[-1] > 1) != (ratio > 1):
            self._far.clear()
        self._far.append(ratio)
        if len(self._far) < _IN_A_ROW:
            return False
        self._change_speed(median(self._far))
        return True

    def _change_speed(self, ratio: float) -> None:
        """Scale all that is known: calls take so many times as long."""
        self._seconds *= ratio
        self._products *= ratio
        self.b *= ratio
        self._ratios.clear()
        self._far.clear()

    def _fit(self) -> None:
        work, seconds = self._work / self._weight, self._seconds / self._weight
        variance = max(self._squares / self._weight - work * work, 0.0)
        covariance = self._products / self._weight - work * seconds
        # Where sizes hardly differ, the slope is what it was.
        prior = (_PRIOR * work) ** 2
        most = seconds / work
        slope = (covariance + prior * (self.b or most / 2)) / (variance + prior)
        self.b = min(max(slope, 0.0), most)
        self.a = max(seconds - self.b * work, 0.0)


def _quantile(values: deque[float]) -> float:
    return sorted(values)[int(_SLOW * (len(values) - 1))]


class LatencyTarget:
    """
    Chooses the policy that keeps the latency target of one task.

    All times are on one monotonic clock; a request counts from when it was sent, as far as that
    is known.

    """

    def __init__(self) -> None:
        self.model = LatencyModel()
        #: Of the next batch.
        self.limit = Limit(inf, Why.LEARNING)
        self._policy: BatchPolicy | None = None
        self._effective = BatchPolicy()
        self._wait = inf
        #: Seconds by which requests have to be early to be accepted, since predictions err.
        self.margin = 0.0
        #: Until when requests are late in any case.
        self._overloaded_until = -inf
        #: The highest urgency of late, and when it was seen.
        self._urgency, self._urgency_seen = 0, -inf

    def policy_for(
        self, policy: BatchPolicy, now: float, urgency: int | None, *, is_mixed: bool
    ) -> BatchPolicy:
        """
        Return the policy for the next batch; the same object while nothing has changed.

        Args:
            policy: As it is configured, with a ``target_latency``.
            now: The time.
            urgency: Of the most urgent request that waits; None if none does.
            is_mixed: Whether less urgent ones wait, too.
        """
        are_filling = self._is_behind_urgent(now, urgency) or is_mixed
        limit, before = self._choose(policy, now, are_filling=are_filling), self.limit
        wait = self._longest_wait(policy, limit)
        is_same = policy is self._policy and limit.why is before.why
        if not (is_same and _are_close(limit.work, before.work) and _are_close(wait, self._wait)):
            self._policy, self.limit, self._wait = policy, limit, wait
            self._effective = _limited(policy, limit.work, wait)
        return self._effective

    def _longest_wait(self, policy: BatchPolicy, limit: Limit) -> float:
        """Return how long a request may wait for others in a batch as large as they usually are."""
        target = policy.target_latency
        if target is None or limit.why in (Why.LEARNING, Why.UNREACHABLE):
            return policy.max_wait
        return min(max(target - self.model.slow(self.model.usual_work), 0.0), policy.max_wait)

    def _choose(self, policy: BatchPolicy, now: float, *, are_filling: bool) -> Limit:
        model, most, target = self.model, policy.max_batch_work, policy.target_latency or inf
        if not model.is_known:
            return Limit(most, Why.LEARNING)
        largest = model.largest(target)
        # The smallest batch has one row, or one that costs next to nothing.
        if largest < (1 if policy.max_batch_cost is None else _SHORTEST):
            return Limit(most, Why.UNREACHABLE)
        if are_filling:
            half = max(model.largest((target + model.overhead) / 2), largest / _MOST_PARTS)
            if half < most:
                return Limit(half, Why.PRIORITIES)
        elif now < self._overloaded_until:
            return Limit(most, Why.OVERLOAD)
        return Limit(largest, Why.TARGET) if largest < most else Limit(most, Why.POLICY)

    def _is_behind_urgent(self, now: float, urgency: int | None) -> bool:
        """Note the urgency of those that wait; return whether more urgent ones came of late."""
        if urgency is None:
            return False
        if urgency <= self._urgency or now - self._urgency_seen > _URGENT_AGAIN:
            self._urgency, self._urgency_seen = urgency, now
        return urgency > self._urgency

    def batch_left(self, policy: BatchPolicy, now: float, work: float, age: float) -> float:
        """
        Note that a batch leaves; return after how many seconds its oldest request has its result.

        Args:
            policy: As it is configured.
            now: The time.
            work: The batch's.
            age: Seconds from when its oldest request was sent until the batch will run.
        """
        model, target = self.model, policy.target_latency or inf
        if model.is_known and age + model.slow(0.0) > target:
            self._overloaded_until = now + target + model.slow(policy.max_batch_work)
        return age + model.slow(work)

    def note_accepted(self, policy: BatchPolicy, late: float) -> None:
        """
        Learn from a batch whose requests were expected to be in time.

        Args:
            policy: As it is configured.
            late: The part of them that were late.
        """
        target = policy.target_latency or 0.0
        self.margin += _MARGIN_STEP * target * (late - _LATE)
        self.margin = min(max(self.margin, 0.0), _MOST_MARGIN * target)

    def late_by(
        self,
        policy: BatchPolicy,
        ages: tuple[float, float],
        work: float,
        own: float,
        ahead: float,
        *,
        other_keys: int = 0,
        processes: int = 1,
    ) -> float:
        """
        Return by how many seconds a request will probably miss the target; 0 if it will not.

        It must not make the oldest of its batch miss it, either.

        Args:
            policy: As it is configured.
            ages: Seconds since the request was sent, and since the oldest that waits was.
            work: That of all requests that go before it and have not left.
            own: Its own.
            ahead: Seconds after which a process is free.
            other_keys: How many batches go before it at least, since their keys differ.
            processes: How many batches run at once.
        """
        model, target = self.model, policy.target_latency
        if not model.is_known or target is None:
            return 0.0
        left = target - self.margin - ahead - model.overhead
        largest = min(self.limit.work, policy.max_batch_work)
        whole = max(ceil((work + own) / largest) - 1, 0)
        before = whole * model.expected(largest) + max(other_keys - whole, 0) * model.a
        seconds = before / processes + model.expected(work + own - whole * largest)
        age, oldest = ages
        if not (whole or other_keys) and oldest + model.slowness * model.expected(work) <= left:
            age = max(age, oldest)
        return max(age + model.slowness * seconds - left, 0.0)


class TargetedQueue(Generic[T]):
    """
    A batcher whose requests have a latency target.

    A request's ``arrived`` is when it was sent.

    Args:
        batcher: It gets a new policy where the target asks for one.
    """

    def __init__(self, batcher: Batcher[T] | KeyedBatcher[T]) -> None:
        self._batcher = batcher
        #: How large batches may be at most, and their target; the batcher has what is chosen of it.
        self.configured = batcher.policy
        self.target = LatencyTarget()
        #: How many batches run at once.
        self.processes = 1
        #: How many times its requests' work a batch is with its padding, of late.
        self._padding = 1.0
        #: Of the batches that have left and have not ended, in their order.
        self._plans: list[Plan] = []
        self.add = batcher.add
        self.restart_linger = batcher.restart_linger
        self.remove, self.discard = batcher.remove, batcher.discard
        self.clear = batcher.clear

    def next(
        self, now: float, *, full_only: bool = False, earns_share: bool = True
    ) -> Batch[T] | Wait | Done:
        """Decide what a slot does now; see `Batcher.next`."""
        batcher = self._batcher
        urgency = batcher.urgency
        # Where the most urgent ones are a batch by themselves, no others fill it up.
        is_mixed = (
            urgency is not None
            and batcher.rows_of(urgency) < batcher.rows
            and batcher.work_before(urgency) < self.configured.max_batch_work
        )
        policy = self.target.policy_for(self.configured, now, urgency, is_mixed=is_mixed)
        if policy is not batcher.policy:
            batcher.policy = policy
        decision = batcher.next(now, full_only=full_only, earns_share=earns_share)
        if full_only and isinstance(decision, Wait):
            decision = self._next_behind(now, earns_share=earns_share)
        if isinstance(decision, Batch):
            return replace(decision, plan=self._plan(decision, now))
        return decision

    def late_by(self, request: Request[Any], now: float) -> float:
        """Return by how many seconds a request that is about to be added will miss the target."""
        batcher = self._batcher
        if not (len(batcher) or self._plans):
            return 0.0  # it would run at once, so nothing is gained if it does not
        oldest = batcher.oldest
        ages = (now - request.arrived, now - (request.arrived if oldest is None else oldest))
        work = self._padding * batcher.work_before(request.urgency)
        own = self._padding * self.configured.work_of(request)
        return self.target.late_by(
            self.configured,
            ages,
            work,
            own,
            self._ahead(now),
            other_keys=batcher.other_keys(request),
            processes=self.processes,
        )

    def _ahead(self, now: float) -> float:
        """Return the seconds after which what has left has run."""
        return sum(plan.left(now) for plan in self._plans) / self.processes

    def ended(self, plan: Plan, now: float) -> None:
        """Note that a batch has ended, and its process is free."""
        if plan in self._plans:
            self._plans.remove(plan)
        self._begin(now)

    def _next_behind(self, now: float, *, earns_share: bool) -> Batch[T] | Wait:
        """
        Let a batch that is not full leave just before the running one ends.

        The process then finds it when it is free.  Only one that is no small part of what runs:
        after a large batch its callers may call again, and belong into the next one.
        """
        running = self._plans[: self.processes]
        is_known = self.configured.target_latency is not None and self.target.model.is_known
        if not (is_known and running and len(self._batcher)):
            return Wait(None)
        if 2 * self._batcher.work_before(ALL) < min(plan.work for plan in running):
            return Wait(None)
        # Of those that are ready already, each takes the place of a running one.
        lefts = sorted(plan.left(now) for plan in running)
        behind = min(len(self._plans) - len(running), len(running) - 1)
        left = lefts[behind] - self.target.model.overhead
        if left > 0:
            return Wait(left)
        batch = self._batcher.take(now, Reason.AHEAD, earns_share=earns_share)
        return replace(batch, reason=Reason.AHEAD)

    def _plan(self, batch: Batch[T], now: float) -> Plan:
        model = self.target.model
        work = self._work(batch)
        first = min(request.urgency for request in batch.requests)
        # Less urgent ones may wait for long, as a backfill's do.
        oldest = min(each.arrived for each in batch.requests if each.urgency == first)
        age = now - oldest + self._ahead(now)
        predicted = self.target.batch_left(self.configured, now, work, age)
        plan = Plan(work, self.target.limit, model.a, model.b, predicted, now)
        self._plans.append(plan)
        self._begin(now)
        return plan

    def _work(self, batch: Batch[T]) -> float:
        limits = self.configured.cost_limits
        if limits is None:
            return round_up(self.configured.batch_sizes, batch.rows)
        load = Load(limits)
        for request in batch.requests:
            load.offer(request)
        unpadded = sum(map(self.configured.work_of, batch.requests))
        if unpadded:
            self._padding += _LATEST * (max(load.cost / unpadded, 1.0) - self._padding)
        return load.cost

    def _begin(self, now: float) -> None:
        for plan in self._plans[: self.processes]:
            plan.began = min(plan.began, now)


def _are_close(one: float, other: float) -> bool:
    return abs(one - other) <= _NOTICEABLE * other


def _limited(policy: BatchPolicy, work: float, wait: float) -> BatchPolicy:
    """Return the policy with lower limits; itself if they are not lower."""
    if wait < policy.max_wait:
        policy = replace(policy, max_wait=wait)
    if work >= policy.max_batch_work:
        return policy
    if policy.max_batch_cost is None:
        return replace(policy, max_batch_size=most_rows(policy.batch_sizes, max(int(work), 1)))
    return replace(policy, max_batch_cost=work)
