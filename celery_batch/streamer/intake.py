"""
Where a streamer's requests wait, and where its workers take them from.

The shell around a batcher for threads: it has the clock and the lock, and knows who
sleeps.

Rule 1: a slot asks for a batch when it has room, and sleeps when there is none for it.
Rule 2: a newcomer wakes nobody, unless it is the first in line, or makes a batch full.
        So one slot watches the line at most, however many come.
Rule 3: who takes a batch and leaves others behind wakes the next; so no wake is lost.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic, sleep

from celery_batch.batching.batch import Batch
from celery_batch.batching.batcher import Batcher, Wait
from celery_batch.batching.policy import BatchPolicy
from celery_batch.batching.request import Request
from celery_batch.errors import BatchError, QueueFull, WorkerLost
from celery_batch.streamer.answer import Answer, Desk, fail, start, wanted

__all__ = ["Intake", "Requests", "Slot"]

#: Seconds for which who makes a batch full leaves the interpreter to the idle worker that
#: will take it; else one who goes on to submit would keep it, and the device idle, for 5 ms.
_SHORT = 0.00001

Requests = Sequence[Request[Answer]]


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


class Intake:
    """
    The line in front of a streamer's workers.

    Args:
        policy: When a batch leaves.
        desk: Of the streamer's answers.
        most: Items that may wait in line; None for any number.
    """

    def __init__(self, policy: BatchPolicy, desk: Desk, most: int | None = None) -> None:
        self.desk = desk
        self._size = policy.max_batch_size
        self._most = sys.maxsize if most is None else most
        self._batcher: Batcher[Answer] = Batcher(policy)
        # A signal's handler may close us in the midst of whatever its thread does here.
        self._lock = threading.RLock()
        self._rows = 0
        self._slots: list[Slot] = []
        self._sleepers: list[Slot] = []
        self._refusal: BatchError | None = None

    def __repr__(self) -> str:
        state = "open" if self._refusal is None else f"closed: {self._refusal}"
        return f"<Intake {state}: {self._rows} items wait>"

    @property
    def is_open(self) -> bool:
        """Whether it takes requests."""
        return self._refusal is None

    def slot(self, room: int = 1) -> Slot:
        """Return a place for another worker."""
        slot = Slot(threading.Condition(self._lock), room)
        with self._lock:
            self._slots.append(slot)
        return slot

    def add(self, *answers: Answer) -> None:
        """
        Put requests in line, all of them or none.

        Args:
            answers: One for each, with its items.

        Raises:
            QueueFull: There is no room in line for all of their items.
            BatchError: The streamer is closed, or its model could not be loaded.
        """
        now = monotonic()
        with self._lock:
            before = self._admit(sum(len(answer.items) for answer in answers))
            for answer in answers:
                self._batcher.add(Request(answer, now, rows=len(answer.items)))
            is_full = before < self._size <= self._rows
            has_woken = (is_full or not before) and self._wake()
            refusal = self._refusal
            if refusal is not None:  # closed since `_admit`, and maybe between two lines of ours
                left = self._batcher.clear()
                left += [Request(each, now, rows=len(each.items)) for each in answers]
        if refusal is not None:
            fail(left, refusal, self.desk)
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
                    seconds = found.seconds if isinstance(found, Wait) else None
                self._sleepers.append(slot)
                slot.bell.wait(seconds)
                self._sleepers.remove(slot)
            self._wake()  # it may have been the one who watched the line
        return None

    def done(self, slot: Slot, requests: Requests) -> None:
        """Take note that a worker is through with a batch."""
        with self._lock:
            slot.out.remove(requests)
            if self._rows or slot.gone:
                slot.bell.notify()

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

    def put_back(self, requests: Requests) -> None:
        """Put requests in line again; those whose deadline has passed fail."""
        now = monotonic()
        with self._lock:
            refusal = self._refusal
            for request in requests if refusal is None else ():
                self._batcher.add(request)
                self._rows += request.rows
            late = self._batcher.expire(now)
            self._rows -= sum(request.rows for request in late)
            self._wake()
        if refusal is not None:
            fail(requests, refusal, self.desk)
        if late:
            fail(late, WorkerLost("the worker process died, and the next ones, too"), self.desk)

    def wait_until_closed(self, seconds: float) -> bool:
        """Wait, and say whether it was closed meanwhile."""
        slot = Slot(threading.Condition(self._lock), room=0)
        with self._lock:
            if self._refusal is None:
                self._sleepers.append(slot)
                slot.bell.wait(seconds)
                self._sleepers.remove(slot)
        return not self.is_open

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
            for slot in self._sleepers:
                slot.bell.notify()
        fail(left, refusal, self.desk)

    def abandon(self, error: BatchError) -> None:
        """In a forked copy of the process: fail all, whose workers are not ours, without a lock."""
        had = [request for slot in self._slots for requests in slot.out for request in requests]
        left = [*self._batcher.clear(), *had]
        self._lock, self.desk.lock = threading.RLock(), threading.RLock()
        self._slots, self._sleepers = [], []
        for request in left:
            request.item.begin_anew()
        fail(left, error, self.desk)

    def _admit(self, rows: int) -> int:
        """Count rows in, the lock in hand; return how many waited before."""
        if self._refusal is not None:
            raise type(self._refusal)(str(self._refusal))
        before = self._rows
        if self.desk.given_up and (before + rows > self._most or self._is_littered):
            before = self._clean_up()
        if before + rows > self._most:
            raise QueueFull(f"{before} items wait and {rows} more are too many for {self._most}")
        self._rows = before + rows
        return before

    @property
    def _is_littered(self) -> bool:
        return self.desk.given_up > max(self._size, len(self._batcher) // 2)

    def _clean_up(self) -> int:
        """Let go of what was given up while it waited."""
        line = self._batcher.clear()
        left = wanted(line, self.desk)
        for request in left:
            self._batcher.add(request)
        self._rows = sum(request.rows for request in left)
        return self._rows

    def _leave(self, slot: Slot, batch: Batch[Answer]) -> Requests:
        self._rows -= batch.rows
        taken = start(batch.requests, self.desk)
        if taken:
            slot.out.append(taken)
        if self._rows:
            self._wake()
        return taken

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
