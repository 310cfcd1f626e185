"""
Requests in, batches out.

Rule 1: everything that decides when a batch leaves lives in this file.
Rule 2: this file never looks at a clock, takes a lock or sleeps; facts come in
        as arguments, decisions go out as values.
Rule 3: nothing is pushed; whoever has a free model slot asks for a batch.
Rule 4: the most urgent first, and a share for those whom they overtake, see ``priority_queue.py``;
        among equals first come, first served.
Rule 5: a batch is counted in rows; what of the line fits into one, ``packing.py`` says.
Rule 6: who may be what takes processes down goes first and alone, so that nobody
        else waits for the verdict.
Rule 7: company is waited for where there is some.  After a batch of one nobody lingers,
        unless the policy says how long; a crowd shows again while its first one runs.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from celery_batch.batching.batch import Batch, Reason
from celery_batch.batching.policy import BatchPolicy
from celery_batch.batching.priority_queue import PriorityQueue
from celery_batch.batching.request import Request

__all__ = ["Batcher", "Done", "Wait"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wait:
    """
    Not yet.

    Args:
        seconds: Ask again after so long; None means that only a newcomer, a
            freed slot or a drain can change the answer.
    """

    seconds: float | None


@dataclass(frozen=True, slots=True)
class Done:
    """Drained and empty: there will never be another batch."""


class Batcher(Generic[T]):
    """
    The queue in front of a model.

    Args:
        policy: How large a batch may grow and how long it may wait.
    """

    def __init__(self, policy: BatchPolicy) -> None:
        self.policy = policy
        self._waiting: PriorityQueue[T] = PriorityQueue()
        self._suspects: deque[Request[T]] = deque()
        self._quiet_since = 0.0
        #: When a crowd was answered that somebody in line is to wait for.
        self._group_at = 0.0
        self._has_company = True
        self._draining = False

    def __len__(self) -> int:
        return len(self._waiting) + len(self._suspects)

    def __repr__(self) -> str:
        state = "draining" if self._draining else "open"
        return f"<Batcher {state}: {len(self)} waiting of {self.policy.max_batch_size}>"

    @property
    def oldest(self) -> float | None:
        """When the oldest waiting request arrived; None if nobody waits."""
        oldest = self._waiting.oldest
        if not self._suspects:
            return oldest
        suspect = self._suspects[0].arrived
        return suspect if oldest is None else min(suspect, oldest)

    @property
    def urgency(self) -> int | None:
        """How urgent the next batch will be; None if nobody waits."""
        return self._suspects[0].urgency if self._suspects else self._waiting.urgency

    @property
    def rows(self) -> int:
        """How many rows those in line have."""
        return self._waiting.rows + sum(request.rows for request in self._suspects)

    def rows_of(self, urgency: int) -> int:
        """How many rows those in line have who are just so urgent."""
        return self._waiting.rows_of(urgency)

    def before(self, urgency: int) -> tuple[int, int]:
        """
        Return behind how many requests a newcomer would wait, and how many rows they have.

        Args:
            urgency: Of the newcomer, who overtakes those with a greater number.
        """
        requests, rows = self._waiting.before(urgency)
        suspects = self._suspects
        return requests + len(suspects), rows + sum(request.rows for request in suspects)

    @property
    def is_full(self) -> bool:
        """Whether a batch waits that cannot grow any more."""
        return bool(self._suspects) or self._waiting.rows >= self.policy.max_batch_size

    @property
    def next_deadline(self) -> float | None:
        """When the first of those who go alone will have waited in vain; None if nobody will."""
        deadlines = (request.deadline for request in self._suspects)
        return min((each for each in deadlines if each is not None), default=None)

    def add(self, request: Request[T]) -> None:
        """
        Put a request in line.

        Args:
            request: Its ``arrived`` is on the clock that `next` will be asked with.
        """
        if request.alone:
            self._suspects.append(request)
            return
        self._waiting.append(request)
        self._quiet_since = max(self._quiet_since, request.arrived)

    def looked_away(self, now: float) -> None:
        """
        Take note that nobody could have been seen coming until now.

        A thread that was busy elsewhere cannot tell silence from a crowd at the
        door.  Silence counts from here again; ``max_wait`` holds all the same.
        """
        self._quiet_since = max(self._quiet_since, now)

    def group_ended(self, now: float, rows: int, urgency: int) -> None:
        """
        Take note that a batch of several has ended, who may well come again together.

        Silence counts from here.  Whoever came while it ran, if they are few beside it, wait
        as if they had come now, once: gone at once, as due as they may be, they and the crowd
        would take turns for good.

        Args:
            now: Seconds on the clock of the requests' arrivals.
            rows: Of the batch.
            urgency: Of the batch.
        """
        self.looked_away(now)
        waiting = self._waiting
        are_few = 2 * waiting.rows < rows and waiting.urgency == urgency
        if are_few and (waiting.oldest or 0.0) >= self._group_at:
            self._group_at = now

    def next(self, now: float, *, ahead: bool = False, owes: bool = True) -> Batch[T] | Wait | Done:
        """
        Answer what a model slot should do now.

        Args:
            now: Seconds on the clock of the requests' arrivals.
            ahead: The slot is not free yet: take only a batch that could not
                grow any more, since waiting costs its requests nothing.
            owes: Those in line who are overtaken are owed their share for it; not where
                a batch of theirs lies ready that is overtaken, and owed it in their stead.

        Returns:
            A batch to run, how long to wait before asking again, or `Done`.
        """
        if self._suspects:
            suspect = self._suspects.popleft()
            return Batch((suspect,), Reason.ALONE, suspect.urgency)
        if self._waiting.rows >= self.policy.max_batch_size:
            return self._take(Reason.FULL, owes=owes)
        if not self._waiting:
            return Done() if self._draining else Wait(None)
        if ahead:
            return Wait(None)
        if self._draining:
            return self._take(Reason.DRAINED, owes=owes)
        return self._wait_or_take(now, owes=owes)

    def _wait_or_take(self, now: float, *, owes: bool) -> Batch[T] | Wait:
        due = max(self._waiting.oldest or 0.0, self._group_at) + self.policy.max_wait
        quiet = self._quiet_since + self._patience
        if now >= due:
            return self._take(Reason.TIMEOUT, owes=owes)
        if now >= quiet:
            return self._take(Reason.IDLE, owes=owes)
        return Wait(min(due, quiet) - now)

    @property
    def _patience(self) -> float:
        expects_nobody = self.policy.linger is None and not self._has_company
        return 0.0 if expects_nobody else self.policy.patience

    def drain(self) -> None:
        """Stop waiting for company: nobody else will come."""
        self._draining = True

    def clear(self) -> list[Request[T]]:
        """Give back everybody still in line, in the order they would have gone, and forget them."""
        left = [*self._suspects, *self._waiting.clear()]
        self._suspects.clear()
        return left

    def expire(self, now: float) -> list[Request[T]]:
        """Remove and return those whose deadline has passed while they waited to go alone."""
        suspects, self._suspects = self._suspects, deque()
        late: list[Request[T]] = []
        for request in suspects:
            is_late = request.deadline is not None and request.deadline <= now
            (late if is_late else self._suspects).append(request)
        return late

    def _take(self, reason: Reason, *, owes: bool) -> Batch[T]:
        policy, urgency = self.policy, self._waiting.urgency or 0
        share = policy.low_priority_share if owes else 0.0
        guaranteed = self._waiting.guaranteed / policy.max_batch_size
        taken = self._waiting.take(policy.max_batch_size, share)
        batch = Batch(tuple(taken), reason, urgency, guaranteed)
        self._has_company = len(batch) > 1
        if reason is Reason.FULL and self._overtakes(batch):
            return replace(batch, reason=Reason.URGENT)
        return batch

    def _overtakes(self, batch: Batch[T]) -> bool:
        """Say whether a batch has room, and goes before others all the same."""
        next_urgency = self._waiting.urgency
        has_room = batch.rows < self.policy.max_batch_size
        return has_room and next_urgency is not None and batch.urgency < next_urgency
