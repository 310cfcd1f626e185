"""The queue of a streamer's requests, from which its workers take batches.

The shell around a batcher for threads: it has the clock and the lock, and knows who
sleeps.

Rule 1: a slot asks for a batch when it has room, and sleeps when there is none for it.
Rule 2: a newcomer wakes nobody, unless it is the first in line, or makes a batch full.
        So one slot watches the line at most, however many come.
Rule 3: who takes a batch and leaves others behind wakes the next; so no wake is lost.
Rule 4: a request that is in nobody's line is in hands until it is settled, and `through`
        tells of that: so who drains knows when the last one is answered.
Rule 5: the batcher is told what a Celery worker tells it: that a batch of several has
        ended, and that nobody could have been seen coming.  So batches are the same ones.
"""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic, sleep

from celery_batch.batching.batch import Batch
from celery_batch.batching.batcher import Batcher, Done, Wait
from celery_batch.batching.policy import BatchPolicy
from celery_batch.batching.request import Request
from celery_batch.errors import BatchError, QueueFull, WorkerLost
from celery_batch.streamer.futures import Answer, AnswerLock, fail, start, wanted

__all__ = [
    "RequestQueue",
    "Requests",
    "Slot",
    "Waiting",
]


Requests = Sequence[Request[Answer]]


class Waiting(ABC):
    """
    A line that is counted, and can be closed.

    Args:
        policy: When a batch leaves.
        answer_lock: Of the streamer's answers.
        most: Items that may wait in line; None for any number.
    """

    def __init__(self, policy: BatchPolicy, answer_lock: AnswerLock, most: int | None) -> None:
        self.answer_lock = answer_lock
        self._size = policy.max_batch_size
        self._most = sys.maxsize if most is None else most
        self._batcher: Batcher[Answer] = Batcher(policy)
        # A signal's handler may close us in the midst of whatever its thread does here.
        self._lock = threading.RLock()
        self._rows = 0
        self._in_loader = 0
        self._refusal: BatchError | None = None
        #: Why nobody can be served for the time being.
        self._trouble: BatchError | None = None
        #: What is told after the last one is answered, where nobody else will come.
        self._last_word: BatchError | None = None

    def __repr__(self) -> str:
        state = "open" if self._refusal is None else f"closed: {self._refusal}"
        return f"<Intake {state}: {self._rows} items wait>"

    @property
    def is_open(self) -> bool:
        """Whether it takes requests."""
        return self._refusal is None

    def put_back(self, requests: Requests) -> None:
        """Put requests in line again; those whose deadline has passed fail."""
        now = monotonic()
        with self._lock:
            refusal = self._refusal or self._trouble
            for request in requests if refusal is None else ():
                self._batcher.add(request)
                self._rows += request.rows
            late = self._batcher.expire(now)
            self._rows -= sum(request.rows for request in late)
            self._wake()
        if refusal is not None:
            fail(requests, refusal, self.answer_lock)
        if late:
            fail(
                late,
                WorkerLost("the worker process died, and the next ones, too"),
                self.answer_lock,
            )

    def drain(self, last_word: BatchError) -> None:
        """
        Close when those who wait, or are in hands, have their answers.

        Args:
            last_word: As for `close`.
        """
        with self._lock:
            self._last_word = last_word
            self._batcher.drain()
            self._rouse()
        self._close_when_through()

    def suspend(self, trouble: BatchError) -> None:
        """
        Fail those that wait in line, and refuse others until `resume`.

        Args:
            trouble: What they are told.
        """
        with self._lock:
            self._trouble = trouble
            left = self._batcher.clear()
            self._rows = 0
        fail(left, trouble, self.answer_lock)
        self._close_when_through()

    def resume(self) -> None:
        """Take requests again."""
        self._trouble = None

    def close(self, refusal: BatchError) -> None:
        """
        Take no more requests, and fail those that wait in line.

        Args:
            refusal: What they, and all who come later, are told.
        """
        with self._lock:
            self._refusal = self._refusal or refusal
            left = self._batcher.clear()
            self._rows = 0
            self._rouse()
        fail(left, refusal, self.answer_lock)

    @abstractmethod
    def _wake(self) -> bool:
        """Have a worker look at the line, the lock in hand; return whether it was idle."""

    @abstractmethod
    def _rouse(self) -> None:
        """Have all workers look up, the lock in hand."""

    def _admit(self, rows: int) -> int:
        """Count rows in, the lock in hand; return how many waited before."""
        if refusal := self._refusal or self._trouble:
            raise type(refusal)(str(refusal))
        before = self._rows
        if self.answer_lock.given_up and (before + rows > self._most or self._is_littered):
            before = self._clean_up()
        if before + rows > self._most:
            raise QueueFull(f"{before} items wait and {rows} more are too many for {self._most}")
        self._rows = before + rows
        return before

    @property
    def _is_littered(self) -> bool:
        return self.answer_lock.given_up > max(self._size, len(self._batcher) // 2)

    def _clean_up(self) -> int:
        """Let go of what was given up while it waited."""
        line = self._batcher.clear()
        left = wanted(line, self.answer_lock)
        for request in left:
            self._batcher.add(request)
        self._rows = sum(request.rows for request in left)
        return self._rows

    def _close_when_through(self) -> bool:
        last_word = self._last_word
        if last_word is None or self._in_loader or len(self._batcher):
            return False
        self.close(last_word)
        return True


#: Seconds for which who makes a batch full leaves the interpreter to the idle worker that
#: will take it; else one who goes on to submit would keep it, and the device idle, for 5 ms.
_SHORT = 0.00001


@dataclass(eq=False, slots=True)
class Slot:
    """
    A worker's place at the intake.

    Args:
        bell: Rings when it should ask again.
        room: How many batches it may have at a time: one runs, others lie ready behind it.
        out: Those it has, the one that runs first.
        gone: It takes no more; its worker has ended.
    """

    bell: threading.Condition
    room: int = 1
    out: deque[Requests] = field(default_factory=deque)
    gone: bool = False


class RequestQueue(Waiting):
    """
    The line in front of a streamer's workers.

    Args:
        policy: When a batch leaves.
        answer_lock: Of the streamer's answers.
        most: Items that may wait in line; None for any number.
    """

    def __init__(
        self, policy: BatchPolicy, answer_lock: AnswerLock, most: int | None = None
    ) -> None:
        super().__init__(policy, answer_lock, most)
        self._slots: list[Slot] = []
        self._sleepers: list[Slot] = []

    def slot(self, room: int = 1) -> Slot:
        """Return a place for another worker."""
        slot = Slot(threading.Condition(self._lock), room)
        with self._lock:
            self._slots.append(slot)
        return slot

    def add(self, answers: Iterable[Answer], rows: int) -> None:
        """
        Put requests in line, all of them or none.

        Args:
            answers: One for each, with its items.
            rows: How many items they have together.

        Raises:
            QueueFull: There is no room in line for all of their items.
            BatchError: The streamer is closed, or its model could not be loaded.
        """
        now = monotonic()
        with self._lock:
            before = self._admit(rows)
            for answer in answers:
                self._batcher.add(Request(answer, now, 0, False, None, len(answer.items)))  # noqa: FBT003
            is_full = before < self._size <= self._rows
            has_woken = (is_full or not before) and self._wake()
            refusal = self._refusal
            if refusal is not None:  # closed since `_admit`, and maybe between two lines of ours
                left = self._batcher.clear()
                left += [Request(each, now, rows=len(each.items)) for each in answers]
        if refusal is not None:
            fail(left, refusal, self.answer_lock)
        if is_full and has_woken:
            sleep(_SHORT)

    def take(self, slot: Slot) -> Requests | None:
        """
        Wait for a batch.

        Args:
            slot: Of the worker that asks; the batch is in its hands from here on.

        Returns:
            The batch; None if there will not be another.
        """
        with self._lock:
            while self._refusal is None and (slot.out or not slot.gone):
                seconds = None
                if len(slot.out) < slot.room and not slot.gone:
                    found = self._batcher.next(monotonic(), ahead=bool(slot.out))
                    if isinstance(found, Batch):
                        if taken := self._leave(slot, found):
                            return taken
                        continue
                    if isinstance(found, Done) and self._close_when_through():
                        break
                    seconds = found.seconds if isinstance(found, Wait) else None
                self._sleepers.append(slot)
                self._sleep(slot, seconds)
                self._sleepers.remove(slot)
            self._wake()  # it may have been the one who watched the line
        return None

    def done(self, slot: Slot, requests: Requests) -> bool:
        """
        Take note that a batch has ended: its worker has room again, while it is settled.

        Returns:
            Whether the worker still had it; not if it was recalled.
        """
        with self._lock:
            if requests not in slot.out:
                return False
            slot.out.remove(requests)
            if len(requests) > 1:
                rows = sum(request.rows for request in requests)
                self._batcher.batch_ended(monotonic(), rows, requests[0].urgency)
            if self._rows or slot.gone:
                slot.bell.notify()
        return True

    def through(self, requests: int) -> None:
        """Take note that so many requests that were in hands are settled, or in line again."""
        with self._lock:
            self._in_loader -= requests
            if requests > 1:  # those who were answered could not come before
                self._batcher.restart_linger(monotonic())
        self._close_when_through()

    def retire(self, slot: Slot) -> None:
        """Give a worker no more than what it has."""
        with self._lock:
            slot.gone = True
            slot.bell.notify()

    def recall(self, slot: Slot) -> list[Requests]:
        """Let a worker go, and return the batches it had, the one that ran first."""
        with self._lock:
            slot.gone = True
            had, slot.out = list(slot.out), deque()
            if slot in self._slots:
                self._slots.remove(slot)
            slot.bell.notify()
        return had

    def wait_until_closed(self, seconds: float | None) -> bool:
        """Wait, and say whether it was closed meanwhile."""
        slot = Slot(threading.Condition(self._lock), room=0)
        with self._lock:
            if self._refusal is None:
                self._sleepers.append(slot)
                slot.bell.wait(seconds)
                self._sleepers.remove(slot)
        return not self.is_open

    def abandon(self, error: BatchError) -> None:
        """In a forked copy of the process: fail all, whose workers are not ours, without a lock."""
        had = [request for slot in self._slots for requests in slot.out for request in requests]
        left = [*self._batcher.clear(), *had]
        self._lock, self.answer_lock.lock = threading.RLock(), threading.RLock()
        self._slots, self._sleepers = [], []
        for request in left:
            request.item.begin_anew()
        fail(left, error, self.answer_lock)

    def _sleep(self, slot: Slot, seconds: float | None) -> None:
        """Wait for the bell; who wakes late could not see who was coming."""
        due = None if seconds is None else monotonic() + seconds
        slot.bell.wait(seconds)
        if due is not None and (now := monotonic()) - due > self._batcher.policy.linger_seconds:
            self._batcher.restart_linger(now)

    def _leave(self, slot: Slot, batch: Batch[Answer]) -> Requests:
        self._rows -= batch.rows
        taken = start(batch.requests, self.answer_lock)
        if taken:
            slot.out.append(taken)
            self._in_loader += len(taken)
        if self._rows:
            self._wake()
        return taken

    def _rouse(self) -> None:
        for slot in self._sleepers:
            slot.bell.notify()

    def _wake(self) -> bool:
        """
        Have a slot ask for a batch, the lock in hand: an idle one, rather.

        Returns:
            Whether it is idle.
        """
        for slot in self._sleepers:
            if not slot.out and slot.room and not slot.gone:
                slot.bell.notify()
                return True
        if self._batcher.is_full:
            for slot in self._sleepers:
                if len(slot.out) < slot.room and not slot.gone:
                    slot.bell.notify()
                    break
        return False
