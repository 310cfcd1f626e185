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

from collections.abc import Callable
from dataclasses import replace
from math import ceil, inf
from typing import Any, Generic, TypeVar

from celery_batch.batching.batch import (
    LEAST_URGENT,
    Batch,
    LimitReason,
    Plan,
    Reason,
    Request,
    SizeLimit,
)
from celery_batch.batching.batcher import Wait
from celery_batch.batching.cost import Load
from celery_batch.batching.keyed_batcher import AnyBatcher
from celery_batch.batching.latency_model import LatencyModel
from celery_batch.batching.policy import BatchPolicy
from celery_batch.batching.shapes import most_rows, round_up

__all__ = ["TargetedQueue"]

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


class TargetedQueue(Generic[T]):
    """A batcher that keeps a latency target: this chooses its policy for each batch."""

    def __init__(self, batcher: AnyBatcher[T], processes: Callable[[], int] = lambda: 1) -> None:
        self._batcher = batcher
        self._processes = processes
        #: How large batches may be at most, and their target; the batcher has what is chosen of it.
        self.configured = batcher.policy
        self.model = LatencyModel()
        #: Of the next batch.
        self.limit = SizeLimit(inf, LimitReason.LEARNING)
        #: For which policy the batcher's was chosen, and the longest wait in that.
        self._chosen_for: BatchPolicy | None = None
        self._wait = inf
        #: Seconds by which requests have to be early to be accepted, since predictions err.
        self.margin = 0.0
        #: Until when requests are late in any case.
        self._overloaded_until = -inf
        #: The highest urgency of late, and when it was seen.
        self._urgency, self._urgency_seen = 0, -inf
        #: How many times its requests' work a batch is with its padding, of late.
        self._padding = 1.0
        #: Of the batches that have left and have not ended, in their order.
        self._plans: list[Plan] = []
        self.add = batcher.add
        self.restart_linger = batcher.restart_linger
        self.remove, self.discard = batcher.remove, batcher.discard
        self.clear = batcher.clear

    def __len__(self) -> int:
        return len(self._batcher)

    def next(
        self, now: float, *, full_only: bool = False, earns_share: bool = True
    ) -> Batch[T] | Wait:
        """Decide what a slot does now; see `Batcher.next`."""
        self._choose_policy(now)
        decision = self._batcher.next(now, full_only=full_only, earns_share=earns_share)
        if full_only and isinstance(decision, Wait):
            decision = self._next_behind(now, earns_share=earns_share)
        if isinstance(decision, Batch):
            return replace(decision, plan=self._plan(decision, now))
        return decision

    def _choose_policy(self, now: float) -> None:
        """Give the batcher the policy for the next batch, if that is another one."""
        batcher, policy, before = self._batcher, self.configured, self.limit
        self.model.forget(now)
        urgency = batcher.urgency
        # Where the most urgent ones are a batch by themselves, no others fill it up.
        is_filled_up = (
            urgency is not None
            and batcher.rows_of(urgency) < batcher.rows
            and batcher.work_before(urgency) < policy.max_batch_work
        )
        limit = self._limit(now, is_mixed=self._is_behind_urgent(now, urgency) or is_filled_up)
        wait = self._longest_wait(limit)
        is_same = policy is self._chosen_for and limit.why is before.why
        if is_same and _are_close(limit.work, before.work) and _are_close(wait, self._wait):
            return
        self._chosen_for, self.limit, self._wait = policy, limit, wait
        chosen = _limited(policy, limit.work, wait)
        if chosen is not batcher.policy:
            batcher.policy = chosen

    def _longest_wait(self, limit: SizeLimit) -> float:
        """Return how long a request may wait for others in a batch as large as they usually are."""
        model, most, target = self.model, self.configured.max_wait, self.configured.target_latency
        if target is None or limit.why in (LimitReason.LEARNING, LimitReason.UNREACHABLE):
            return most
        return min(max(target - model.slow(model.usual_work), 0.0), most)

    def _limit(self, now: float, *, is_mixed: bool) -> SizeLimit:
        """Return how large batches may be; if `is_mixed`, less urgent requests fill them up."""
        model, policy = self.model, self.configured
        most, target = policy.max_batch_work, policy.target_latency or inf
        if not model.is_known:
            return SizeLimit(most, LimitReason.LEARNING)
        largest = model.largest(target)
        # The smallest batch has one row, or one that costs next to nothing.
        if largest < (1 if policy.max_batch_cost is None else _SMALLEST):
            return SizeLimit(most, LimitReason.UNREACHABLE)
        if is_mixed:
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

    def note_accepted(self, late: float) -> None:
        """Learn which part of a batch's requests were late that were expected to be in time."""
        target = self.configured.target_latency or 0.0
        self.margin += _MARGIN_STEP * target * (late - _LATE)
        self.margin = min(max(self.margin, 0.0), _MOST_MARGIN * target)

    def late_by(self, request: Request[Any], now: float) -> float:
        """Return by how many seconds a new request, or the oldest beside it, will be late."""
        batcher, policy, model = self._batcher, self.configured, self.model
        if not (len(batcher) or self._plans):
            return 0.0  # it would run at once, so nothing is gained if it does not
        model.forget(now)
        target = policy.target_latency
        if not model.is_known or target is None:
            return 0.0
        before = self._padding * batcher.work_before(request.urgency)
        other_keys = batcher.other_keys(request)
        left = target - self.margin - self._seconds_left(now) - model.overhead
        largest = min(self.limit.work, policy.max_batch_work)
        total = before + self._padding * policy.work_of(request.rows, request.cost)
        whole = max(ceil(total / largest) - 1, 0)
        seconds = whole * model.expected(largest) + max(other_keys - whole, 0) * model.a
        seconds = seconds / self._processes() + model.expected(total - whole * largest)
        age = now - request.arrived
        if not (whole or other_keys):  # it joins the batch of the oldest
            oldest_age = age if batcher.oldest is None else now - batcher.oldest
            if oldest_age + model.slowness * model.expected(before) <= left:
                age = max(age, oldest_age)
        return max(age + model.slowness * seconds - left, 0.0)

    def _seconds_left(self, now: float) -> float:
        """Return the seconds after which what has left has run."""
        return sum(plan.seconds_left(now) for plan in self._plans) / self._processes()

    def ended(self, plan: Plan, now: float) -> None:
        """Note that a batch has ended, and its process is free."""
        if plan in self._plans:
            self._plans.remove(plan)
        self._begin(now)

    def _next_behind(self, now: float, *, earns_share: bool) -> Batch[T] | Wait:
        """Let a batch that is not full leave just before the running one ends (rule 6)."""
        running = self._plans[: self._processes()]
        is_known = self.configured.target_latency is not None and self.model.is_known
        if not (is_known and running and len(self._batcher)):
            return Wait(None)
        if 2 * self._batcher.work_before(LEAST_URGENT) < min(plan.work for plan in running):
            return Wait(None)  # the callers of a large batch may call again, and belong into it
        # Of those that are ready already, each takes the place of a running one.
        lefts = sorted(plan.seconds_left(now) for plan in running)
        behind = min(len(self._plans) - len(running), len(running) - 1)
        left = lefts[behind] - self.model.overhead
        if left > 0:
            return Wait(left)
        batch = self._batcher.take(now, Reason.AHEAD, earns_share=earns_share)
        return replace(batch, reason=Reason.AHEAD)

    def _plan(self, batch: Batch[T], now: float) -> Plan:
        model, policy, work = self.model, self.configured, self._work(batch)
        first = min(request.urgency for request in batch.requests)
        # Less urgent ones may wait for long, as a backfill's do.
        oldest = min(each.arrived for each in batch.requests if each.urgency == first)
        age = now - oldest + self._seconds_left(now)
        target = policy.target_latency or inf
        if model.is_known and age + model.slow(0.0) > target:
            self._overloaded_until = now + target + model.slow(policy.max_batch_work)
        plan = Plan(work, self.limit, model.a, model.b, age + model.slow(work), now)
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
        for plan in self._plans[: self._processes()]:
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
