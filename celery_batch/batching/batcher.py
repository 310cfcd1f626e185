"""
Requests in, batches out.

Rule 1: everything that decides when a batch leaves is in this file.
Rule 2: this file reads no clock, takes no lock and never sleeps: facts are arguments,
        decisions are return values.
Rule 3: nothing is pushed: a free slot asks for a batch.
Rule 4: the most urgent requests go first, and overtaken requests have a guaranteed share of
        each batch; among equals, first come, first served.
Rule 5: a batch is counted in rows (``priority_queue.py``), or in rows and cost
        (``cost_queue.py``); the queue decides which requests fit together.
Rule 6: a request that may kill its process runs first and alone, so that others do not wait
        until that is known. Of many that were delivered again, most have only waited in a worker
        that ended: the first runs alone, and each batch that ends doubles the next.
Rule 7: a slot waits for further requests only where these are likely. After a batch of one it
        does not linger, unless the policy says for how long: if more requests follow, they
        form the next batch while the first one runs. Where they could not be seen meanwhile, it
        lingers (`Batcher.expect_more`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from math import inf
from typing import Generic, TypeVar

from celery_batch.batching.batch import Batch, Reason, Request
from celery_batch.batching.cost import CallCost, CostLimits, Load
from celery_batch.batching.cost_queue import CostQueue
from celery_batch.batching.policy import BatchPolicy
from celery_batch.batching.priority_queue import PriorityQueue

__all__ = ["Batcher", "Wait"]

T = TypeVar("T")

#: Seconds without suspects after which it is another worker's end that they come from.
_SAME_END = 60.0


@dataclass(frozen=True, slots=True)
class Wait:
    """No batch yet: ask again in so many seconds; None if only an event changes the answer."""

    seconds: float | None


class Batcher(Generic[T]):
    """The queue in front of a model."""

    def __init__(self, policy: BatchPolicy, call_cost: CallCost | None = None) -> None:
        self._policy = policy
        self._call_cost = call_cost or CallCost()
        self._waiting: PriorityQueue[T] | CostQueue[T] = self._queue_for(policy)
        self._suspects: deque[Request[T]] = deque()
        #: How many redelivered requests may run together, and when the last batch of suspects
        #: left or ended.
        self._most_redelivered = 1
        self._suspects_at = 0.0
        #: When the current linger began.
        self._linger_from = 0.0
        #: When the last large batch ended: its callers may call again, so the waiting requests
        #: count `max_wait` from here.
        self._wait_from = 0.0
        #: Whether the last batch was one of several, so that more requests are likely.
        self.had_several = True
        #: Whether the last batch left requests behind that fit into it: these wait no longer.
        self._has_left_some = False

    def __len__(self) -> int:
        return len(self._waiting) + len(self._suspects)

    @property
    def policy(self) -> BatchPolicy:
        """When batches leave; it may change at any time."""
        return self._policy

    @policy.setter
    def policy(self, policy: BatchPolicy) -> None:
        before, self._policy = self._policy, policy
        limits, before_limits = policy.cost_limits, before.cost_limits
        if (limits, policy.sort_window) == (before_limits, before.sort_window):
            return
        is_padded = limits is not None and limits.is_padded
        was_padded = before_limits is not None and before_limits.is_padded
        if limits is not None and isinstance(self._waiting, CostQueue) and is_padded == was_padded:
            self._waiting.limit(limits, policy.sort_window)
        else:  # work has another unit
            waiting, self._waiting = self._waiting.clear(), self._queue_for(policy)
            for request in sorted(waiting, key=lambda request: request.arrived):
                self._waiting.append(request)

    @property
    def oldest(self) -> float | None:
        """When the oldest waiting request arrived; None if none waits."""
        oldest = self._waiting.oldest
        if not self._suspects:
            return oldest
        suspect = self._suspects[0].arrived
        return suspect if oldest is None else min(suspect, oldest)

    @property
    def urgency(self) -> int | None:
        """The urgency of the next batch; None if no request waits."""
        return self._suspects[0].urgency if self._suspects else self._waiting.urgency

    @property
    def rows(self) -> int:
        """How many rows the waiting requests have."""
        return self._waiting.rows + sum(request.rows for request in self._suspects)

    def rows_of(self, urgency: int) -> int:
        """Return how many rows the waiting requests of exactly this urgency have."""
        return self._waiting.rows_of(urgency)

    def before(self, urgency: int) -> tuple[int, int]:
        """Return how many requests would go before a new one of this urgency, and their rows."""
        requests, rows = self._waiting.before(urgency)
        suspects = self._suspects
        return requests + len(suspects), rows + sum(request.rows for request in suspects)

    def work_before(self, urgency: int) -> float:
        """Return how much work goes before a new request, in the unit of `max_batch_work`."""
        suspects = sum(self.policy.work_of(each.rows, each.cost) for each in self._suspects)
        return self._waiting.work_before(urgency) + suspects

    def other_keys(self, request: Request[T]) -> int:  # noqa: ARG002 (KeyedBatcher's)
        """Return how many other keys have requests that go before a new one: there is one key."""
        return 0

    @property
    def is_full(self) -> bool:
        """Whether a batch waits that cannot grow."""
        return bool(self._suspects) or self._waiting.is_full(self._policy.max_batch_size)

    @property
    def has_whole_batch(self) -> bool:
        """Whether a batch waits that would not even pad less if it waited longer."""
        return self.is_full and self._waiting.has_whole_batch(self._policy.max_batch_size)

    @property
    def next_deadline(self) -> float | None:
        """The earliest deadline of the requests that run alone; None if they have none."""
        deadlines = (request.deadline for request in self._suspects)
        return min((each for each in deadlines if each is not None), default=None)

    def add(self, request: Request[T]) -> None:
        """Add a request, whose ``arrived`` is on the clock of `next`."""
        if request.is_suspect:
            self._suspects.append(request)
            return
        self._waiting.append(request)
        self._linger_from = max(self._linger_from, request.arrived)

    def restart_linger(self, now: float) -> None:
        """Let the linger time begin now: until now, arrivals could not be seen."""
        self._linger_from = max(self._linger_from, now)

    def batch_ended(
        self,
        now: float,
        rows: int,
        urgency: int,
        key: Hashable = None,  # noqa: ARG002 (KeyedBatcher's)
    ) -> None:
        """Note that a batch of several requests has ended, whose callers may soon call again."""
        self.restart_linger(now)
        waiting = self._waiting
        are_few = 2 * waiting.rows < rows and waiting.urgency == urgency
        if are_few and (waiting.oldest or 0.0) >= self._wait_from:
            self._wait_from = now

    def redelivered_ended(self, now: float, requests: int) -> None:
        """Note that so many redelivered requests have ended together, and no process with them."""
        self._most_redelivered = max(self._most_redelivered, 2 * requests)
        self._suspects_at = now

    def expect_more(self, key: Hashable = None) -> None:  # noqa: ARG002 (KeyedBatcher's)
        """Linger after a batch of one, too: others may have come that could not be seen."""
        self.had_several = True

    def next(
        self, now: float, *, full_only: bool = False, earns_share: bool = True
    ) -> Batch[T] | Wait:
        """Return a batch to run, or how long to wait; `full_only` for a slot that is not free."""
        # `earns_share` is False while an overtaken batch is ready that earns it for the requests.
        if self._suspects:
            return self._take_suspects(now)
        # Behind a running batch it costs nothing to wait for those that pad less.
        if self.has_whole_batch if full_only else self.is_full:
            return self._take(Reason.FULL, earns_share=earns_share)
        if full_only or not self._waiting:
            return Wait(None)
        reason = self._reason(now)
        if reason is None:
            return Wait(self.due_at - now)
        return self._take(reason, earns_share=earns_share)

    def _take_suspects(self, now: float) -> Batch[T]:
        """Remove and return the first suspect, with others if all of them were redelivered."""
        if now - self._suspects_at > _SAME_END:
            self._most_redelivered = 1
        self._suspects_at = now
        suspects, first = self._suspects, self._suspects.popleft()
        taken = [first]
        limits = self._policy.cost_limits or CostLimits(
            self._policy.max_batch_size, inf, is_padded=False
        )
        load = Load(limits)
        load.offer(first)
        while suspects and not first.alone and len(taken) < self._most_redelivered:
            if suspects[0].alone or suspects[0].key != first.key or not load.offer(suspects[0]):
                break
            taken.append(suspects.popleft())
        reason = Reason.FULL if len(taken) > 1 else Reason.ALONE
        return Batch(tuple(taken), reason, min(each.urgency for each in taken))

    def take(self, now: float, unless_due: Reason, *, earns_share: bool = True) -> Batch[T]:
        """Remove and return the next batch, for the reason `unless_due` if it could wait longer."""
        reason = Reason.FULL if self.is_full else self._reason(now)
        return self._take(reason or unless_due, earns_share=earns_share)

    def _reason(self, now: float) -> Reason | None:
        """Return why a batch that can grow leaves now; None if it waits."""
        if now >= self._timeout_at:
            return Reason.TIMEOUT
        return Reason.IDLE if self._has_left_some or now >= self._idle_at else None

    @property
    def due_at(self) -> float:
        """When a batch leaves if no further request arrives."""
        if self._has_left_some:
            return self._waiting.oldest or 0.0
        return min(self._timeout_at, self._idle_at)

    @property
    def _timeout_at(self) -> float:
        return max(self._waiting.oldest or 0.0, self._wait_from) + self.policy.max_wait

    @property
    def _idle_at(self) -> float:
        expects_more = self.had_several or self.policy.linger is not None
        return self._linger_from + (self.policy.linger_seconds if expects_more else 0.0)

    def clear(self) -> list[Request[T]]:
        """Remove and return all waiting requests, in the order in which they would have run."""
        left = [*self._suspects, *self._waiting.clear()]
        self._suspects.clear()
        return left

    def remove(self, is_unwanted: Callable[[Request[T]], bool]) -> list[Request[T]]:
        """Remove and return some waiting requests; the others keep their places."""
        return self._remove_suspects(is_unwanted) + self._waiting.remove(is_unwanted)

    def _remove_suspects(self, is_unwanted: Callable[[Request[T]], bool]) -> list[Request[T]]:
        suspects, self._suspects = self._suspects, deque()
        removed: list[Request[T]] = []
        for request in suspects:
            (removed if is_unwanted(request) else self._suspects).append(request)
        return removed

    def discard(self, request: Request[T]) -> None:
        """Remove a waiting request that does not run alone."""
        self._waiting.remove(lambda each: each is request)

    def expire(self, now: float) -> list[Request[T]]:
        """Remove and return the requests that run alone whose deadline has passed."""
        return self._remove_suspects(
            lambda request: request.deadline is not None and request.deadline <= now
        )

    def _take(self, reason: Reason, *, earns_share: bool) -> Batch[T]:
        policy, urgency = self.policy, self._waiting.urgency or 0
        earned_part = self._waiting.earned_rows / policy.max_batch_size
        share = policy.low_priority_share if earns_share else 0.0
        taken = self._waiting.take(policy.max_batch_size, share)
        batch = Batch(tuple(taken), reason, urgency, earned_part)
        self.had_several = len(batch) > 1
        waiting = self._waiting
        self._has_left_some = isinstance(waiting, CostQueue) and waiting.has_divided
        if reason is Reason.FULL and self._overtakes(batch):
            return replace(batch, reason=Reason.URGENT)
        return batch

    def _overtakes(self, batch: Batch[T]) -> bool:
        """Return whether a batch has room left, and goes before less urgent requests."""
        next_urgency = self._waiting.urgency
        if next_urgency is None or next_urgency <= batch.urgency:
            return False
        limits = self.policy.cost_limits
        if limits is None:
            return batch.rows < self.policy.max_batch_size
        load = Load(limits)
        return all(load.offer(request) for request in batch.requests) and not load.is_full

    def _queue_for(self, policy: BatchPolicy) -> PriorityQueue[T] | CostQueue[T]:
        limits = policy.cost_limits
        if limits is None:
            return PriorityQueue()
        return CostQueue(limits, policy.sort_window, self._call_cost)
