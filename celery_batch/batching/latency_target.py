"""
Batches that keep a latency target, as far as it is known how long they take.

Rule 1: until enough batches are known, nothing is limited.
Rule 2: a batch is at most so large that it keeps the target if it leaves at once. A lower
        limit would gain nothing: what it leaves behind waits for one batch more, and smaller
        batches do less work in a second. Only where less urgent requests fill batches up, two
        of them must keep the target, since an urgent request may have to wait for one.
Rule 3: where the oldest request is late in any case, or no batch is fast enough, batches are as
        large as the policy allows: this ends the backlog soonest.
Rule 4: the oldest request stops waiting for others while a batch as large as they usually are
        can still keep the target.
Rule 5: a request cannot make it if it is late once all that runs or goes before it has run, in
        batches as large as they may be; or if the oldest of its batch is late because of it.
        Where more than one in twenty is late that was not expected to be, more is refused.
Rule 6: behind a running batch, one that is not full leaves just before that ends, with all that
        wait: the process finds it as soon as it is free.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Any, Generic, TypeVar

from celery_batch.batching.batch import Batch, LimitReason, Plan, Reason, Request, SizeLimit
from celery_batch.batching.batcher import ALL, Done, Wait
from celery_batch.batching.cost import Load
from celery_batch.batching.keyed_batcher import AnyBatcher
from celery_batch.batching.latency_model import LatencyModel
from celery_batch.batching.policy import BatchPolicy
from celery_batch.batching.shapes import most_rows, round_up

__all__ = ["LatencyTarget", "TargetedQueue"]

T = TypeVar("T")

#: The cost of the smallest batch.
_SMALLEST = 1e-9

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


@dataclass(frozen=True, slots=True)
class Backlog:
    """
    What goes before a request that is about to be added.

    Args:
        work: Of the requests that go before it and have not left.
        other_keys: How many batches these are at least, since their keys differ.
        oldest_age: Seconds since the oldest that waits was sent.
        seconds: After which a process is free.
        processes: How many batches run at once.
    """

    work: float
    other_keys: int
    oldest_age: float
    seconds: float
    processes: int


class LatencyTarget:
    """
    Chooses the policy that keeps the latency target of one task.

    All times are on one monotonic clock; a request counts from when it was sent, as far as that
    is known.
    """

    def __init__(self) -> None:
        self.model = LatencyModel()
        #: Of the next batch.
        self.limit = SizeLimit(inf, LimitReason.LEARNING)
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
        self, policy: BatchPolicy, now: float, urgency: int | None, *, is_filled_up: bool
    ) -> BatchPolicy:
        """
        Return the policy for the next batch; the same object while nothing has changed.

        Args:
            policy: As it is configured, with a ``target_latency``.
            now: The time.
            urgency: Of the most urgent request that waits; None if none does.
            is_filled_up: Whether less urgent ones fill its batch up.
        """
        are_filling = self._is_behind_urgent(now, urgency) or is_filled_up
        limit, before = self._choose(policy, now, are_filling=are_filling), self.limit
        wait = self._longest_wait(policy, limit)
        is_same = policy is self._policy and limit.why is before.why
        if not (is_same and _are_close(limit.work, before.work) and _are_close(wait, self._wait)):
            self._policy, self.limit, self._wait = policy, limit, wait
            self._effective = _limited(policy, limit.work, wait)
        return self._effective

    def _longest_wait(self, policy: BatchPolicy, limit: SizeLimit) -> float:
        """Return how long a request may wait for others in a batch as large as they usually are."""
        target = policy.target_latency
        if target is None or limit.why in (LimitReason.LEARNING, LimitReason.UNREACHABLE):
            return policy.max_wait
        return min(max(target - self.model.slow(self.model.usual_work), 0.0), policy.max_wait)

    def _choose(self, policy: BatchPolicy, now: float, *, are_filling: bool) -> SizeLimit:
        model, most, target = self.model, policy.max_batch_work, policy.target_latency or inf
        if not model.is_known:
            return SizeLimit(most, LimitReason.LEARNING)
        largest = model.largest(target)
        # The smallest batch has one row, or one that costs next to nothing.
        if largest < (1 if policy.max_batch_cost is None else _SMALLEST):
            return SizeLimit(most, LimitReason.UNREACHABLE)
        if are_filling:
            half = max(model.largest((target + model.overhead) / 2), largest / _MOST_PARTS)
            if half < most:
                return SizeLimit(half, LimitReason.PRIORITIES)
        elif now < self._overloaded_until:
            return SizeLimit(most, LimitReason.OVERLOAD)
        return (
            SizeLimit(largest, LimitReason.TARGET)
            if largest < most
            else SizeLimit(most, LimitReason.POLICY)
        )

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

    def late_by(self, policy: BatchPolicy, age: float, work: float, backlog: Backlog) -> float:
        """
        Return by how many seconds a request will probably miss the target; 0 if it will not.

        It must not make the oldest of its batch miss it, either.

        Args:
            policy: As it is configured.
            age: Seconds since the request was sent.
            work: Its own.
            backlog: What goes before it.
        """
        model, target = self.model, policy.target_latency
        if not model.is_known or target is None:
            return 0.0
        left = target - self.margin - backlog.seconds - model.overhead
        largest = min(self.limit.work, policy.max_batch_work)
        total = backlog.work + work
        whole = max(ceil(total / largest) - 1, 0)
        before = whole * model.expected(largest) + max(backlog.other_keys - whole, 0) * model.a
        seconds = before / backlog.processes + model.expected(total - whole * largest)
        if not (whole or backlog.other_keys):  # it joins the batch of the oldest
            without = backlog.oldest_age + model.slowness * model.expected(backlog.work)
            if without <= left:
                age = max(age, backlog.oldest_age)
        return max(age + model.slowness * seconds - left, 0.0)


class TargetedQueue(Generic[T]):
    """
    A batcher whose requests have a latency target.

    A request's ``arrived`` is when it was sent.

    Args:
        batcher: It gets a new policy where the target asks for one.
    """

    def __init__(self, batcher: AnyBatcher[T]) -> None:
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
        is_filled_up = (
            urgency is not None
            and batcher.rows_of(urgency) < batcher.rows
            and batcher.work_before(urgency) < self.configured.max_batch_work
        )
        policy = self.target.policy_for(self.configured, now, urgency, is_filled_up=is_filled_up)
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
        oldest = request.arrived if batcher.oldest is None else batcher.oldest
        backlog = Backlog(
            self._padding * batcher.work_before(request.urgency),
            batcher.other_keys(request),
            now - oldest,
            self._seconds_left(now),
            self.processes,
        )
        work = self._padding * self.configured.work_of(request.rows, request.cost)
        return self.target.late_by(self.configured, now - request.arrived, work, backlog)

    def _seconds_left(self, now: float) -> float:
        """Return the seconds after which what has left has run."""
        return sum(plan.seconds_left(now) for plan in self._plans) / self.processes

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
        lefts = sorted(plan.seconds_left(now) for plan in running)
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
        age = now - oldest + self._seconds_left(now)
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
        unpadded = sum(self.configured.work_of(each.rows, each.cost) for each in batch.requests)
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
