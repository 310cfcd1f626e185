"""The queue of a streamer's requests, from which its workers take batches.

A batcher with a clock and a lock, for threads.  It forms each batch, in `take`, and decides what
follows for its requests, in `finish` and `lose`: an answer, or another run.

Rule 1: A slot asks for a batch when it has room, and sleeps when there is none for it.
Rule 2: A new request wakes a slot only if it is the first in the queue or of its key, or makes a
        batch full.
        So one slot at most watches the queue, however many requests come.
Rule 3: A slot that takes a batch and leaves requests behind wakes the next; so no wake is lost.
Rule 4: A request that was taken is counted until it is settled or back in the queue: so `drain`
        knows when the last one is answered.
Rule 5: The batcher gets the same reports as in a Celery worker: that a batch of several has
        ended, and that no arrival could be seen meanwhile.  So batches are the same.
Rule 6: Where rows are padded, it learns what a call costs beside its rows, as a worker does.
Rule 7: A request whose process died, or whose run broke off, runs again, alone.  If its process
        dies under it then, too, it fails.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any

from celery_batch.batching.batch import Batch, Request
from celery_batch.batching.batcher import Batcher
from celery_batch.batching.cost import CallCost
from celery_batch.batching.keyed_batcher import AnyBatcher, KeyedBatcher
from celery_batch.batching.latency_model import LatencyModel
from celery_batch.batching.policy import BatchPolicy
from celery_batch.errors import BatchError, ModelError, PoisonItem, QueueFull, WorkerLost
from celery_batch.runtime.runner import Outcome
from celery_batch.streamer.futures import Answer, AnswerLock, fail, settle, start, without_cancelled
from celery_batch.streamer.model_adapters import CallTime

__all__ = [
    "RequestQueue",
    "Requests",
    "Slot",
    "broke_off",
]

logger = logging.getLogger(__name__)

Requests = Sequence[Request[Answer]]

#: Seconds for which the caller who makes a batch full leaves the interpreter to the idle worker
#: that takes it; a caller that goes on to submit would keep it, and the device idle, for 5 ms.
_SHORT = 0.00001


@dataclass(eq=False, slots=True)
class Slot:
    """A worker's place at the queue."""

    condition: threading.Condition  # notified when it should ask again
    room: int = 1  # how many batches it may have at a time: one runs, others wait behind it
    out: deque[Requests] = field(default_factory=deque)  # those it has, the one that runs first
    is_retired: bool = False  # it takes no more; its worker has ended
    is_warm: bool = False  # its worker has run a batch: the first one may be slow

    @property
    def has_room(self) -> bool:
        """Whether it takes another batch."""
        return len(self.out) < self.room and not self.is_retired


class RequestQueue:
    """The queue in front of a streamer's workers, which is counted and can be closed."""

    def __init__(
        self,
        policy: BatchPolicy,
        answer_lock: AnswerLock,
        most: int | None = None,
        *,
        by_key: bool = False,
    ) -> None:
        self.answer_lock = answer_lock
        self._size = policy.max_batch_size
        #: Whether a batch is full with so many rows.
        self._counts_rows = policy.max_batch_cost is None and not by_key
        self._most = sys.maxsize if most is None else most
        #: What a call of the model costs beside its rows, and from what that is learnt.
        self._call_cost = cost = CallCost()
        self._model = LatencyModel()
        self._by_key: KeyedBatcher[Answer] | None = KeyedBatcher(policy, cost) if by_key else None
        self._batcher: AnyBatcher[Answer] = (
            Batcher(policy, cost) if self._by_key is None else self._by_key
        )
        # A signal's handler may close the queue while its own thread is in one of its methods.
        self._lock = threading.RLock()
        #: Items that wait, and requests that were taken and are not settled.
        self._rows = self._taken = 0
        #: Why the queue is closed.
        self._closed: BatchError | None = None
        #: Why no worker can serve for the time being.
        self._suspended: BatchError | None = None
        #: The streamer, which is not garbage collected before its requests are answered.
        self._streamer: object = None
        self._has_closed = threading.Event()
        self._slots: list[Slot] = []
        self._sleepers: list[Slot] = []

    @property
    def is_open(self) -> bool:
        """Whether it takes requests."""
        return self._closed is None

    def slot(self, room: int = 1) -> Slot:
        """Return a place for another worker."""
        slot = Slot(threading.Condition(self._lock), room)
        with self._lock:
            self._slots.append(slot)
        return slot

    def add(self, answers: Iterable[Answer], rows: int, streamer: object = None) -> None:
        """Put requests of a streamer in the queue, all of them or none."""
        now = monotonic()
        with self._lock:
            before = self._admit(rows)
            self._streamer = streamer
            by_key = self._by_key
            had_full = not self._counts_rows and self._batcher.is_full
            had_keys = 0 if by_key is None else by_key.keys
            for answer in answers:
                self._batcher.add(
                    Request(answer, now, 0, False, None, len(answer.items), answer.cost, answer.key)  # noqa: FBT003
                )
            is_first = not before if by_key is None else by_key.keys > had_keys
            if self._counts_rows:
                is_full = before < self._size <= self._rows
            else:
                is_full = self._batcher.is_full and not had_full
            has_woken = (is_full or is_first) and self._wake()
            closed = self._closed
            if closed is not None:  # since `_admit`, and maybe between two lines of this method
                left = self._clear()
                left += [Request(each, now, rows=len(each.items)) for each in answers]
        if closed is not None:
            fail(left, closed, self.answer_lock)
        if is_full and has_woken:
            sleep(_SHORT)

    def take(self, slot: Slot) -> Requests | None:
        """Wait for a batch; None if there will not be another."""
        with self._lock:
            while self._closed is None and (slot.out or not slot.is_retired):
                seconds = None
                if slot.has_room:
                    found = self._batcher.next(monotonic(), full_only=bool(slot.out))
                    if isinstance(found, Batch):
                        if taken := self._start(slot, found):
                            return taken
                        continue
                    if self._forget_streamer():
                        continue
                    seconds = found.seconds
                self._sleepers.append(slot)
                self._sleep(slot, seconds)
                self._sleepers.remove(slot)
            self._wake()  # this slot may have been the one that watched the queue
        return None

    def finish(
        self,
        slot: Slot,
        requests: Requests,
        outputs: Sequence[Any] | ModelError,  # none if the batch did not run; why it broke off
        call: CallTime | None = None,
    ) -> None:
        """Settle a batch, unless its worker was lost meanwhile; its worker has room again."""
        with self._lock:
            if requests not in slot.out:
                return
            slot.out.remove(requests)
            self._learn(slot, call)
            if len(requests) > 1:
                rows = sum(request.rows for request in requests)
                self._batcher.batch_ended(monotonic(), rows, requests[0].urgency, requests[0].key)
            if self._rows or slot.is_retired:
                slot.condition.notify()
        if isinstance(outputs, ModelError):
            if len(requests) > 1:
                self._run_alone(requests)
            else:
                fail(requests, outputs, self.answer_lock)
        elif not outputs:
            self._run_first(requests)
        elif Outcome in set(map(type, outputs)):
            self._settle_each(requests, outputs)
        else:
            settle(requests, outputs, self.answer_lock)
        self._through(requests)

    def _learn(self, slot: Slot, call: CallTime | None) -> None:
        """Learn from a batch what calls cost, under the lock."""
        if call is not None and slot.is_warm and self._batcher.policy.padded:
            self._model.observe(*call)
            self._call_cost.value = self._model.call_cost
        slot.is_warm = True

    def lose(self, slot: Slot, *, has_run: bool) -> None:
        """Retire a worker that died, and run its requests again."""
        with self._lock:
            self.retire(slot)
            had, slot.out = list(slot.out), deque()
            self._slots.remove(slot)
        # The first batch was running, if any was; the others waited behind it.
        for requests in had[:1] if has_run else ():
            logger.error("A worker process died; requests that it ran: %d", len(requests))
            self._run_alone([request for request in requests if not request.alone])
            error = PoisonItem("the worker process died under the request, twice")
            fail([request for request in requests if request.alone], error, self.answer_lock)
            self._through(requests)
        for requests in had[1:] if has_run else had:
            self._run_first(requests)
            self._through(requests)

    def fail_late(self) -> None:
        """Fail the requests whose process died, and for whose next run there was no time."""
        self._put_back(())

    def retire(self, slot: Slot) -> None:
        """Give a worker no more batches."""
        with self._lock:
            slot.is_retired = True
            slot.condition.notify()

    def suspend(self, error: BatchError) -> None:
        """Fail the requests that wait, and refuse others until `resume`."""
        with self._lock:
            self._suspended = error
            left = self._clear()
        fail(left, error, self.answer_lock)

    def resume(self) -> None:
        """Take requests again."""
        self._suspended = None

    def close(self, error: BatchError) -> None:
        """Take no more requests, and fail those that wait."""
        with self._lock:
            is_first, self._closed = self._closed is None, self._closed or error
            left = self._clear()
            self._wake_all()
        if is_first:  # a signal's handler that closes it again does not wait for us
            self._has_closed.set()
        fail(left, error, self.answer_lock)

    def wait_until_closed(self, seconds: float | None = None) -> None:
        """Wait until it is closed, for so many seconds at most."""
        self._has_closed.wait(seconds)

    def abandon(self, error: BatchError) -> None:
        """In a forked copy of the process, which has no workers: fail all, without a lock."""
        had = [request for slot in self._slots for requests in slot.out for request in requests]
        left = [*self._batcher.clear(), *had]
        self._lock, self.answer_lock.lock = threading.RLock(), threading.RLock()
        self._slots, self._sleepers, self._streamer = [], [], None
        for request in left:
            request.item.begin_anew()
        fail(left, error, self.answer_lock)

    def _admit(self, rows: int) -> int:
        """Count rows in, under the lock; return how many waited before."""
        if error := self._closed or self._suspended:
            raise type(error)(str(error))
        given_up = self.answer_lock.given_up
        if given_up and (
            self._rows + rows > self._most or given_up > max(self._size, len(self._batcher) // 2)
        ):
            self._remove_cancelled()
        before = self._rows
        if before + rows > self._most:
            raise QueueFull(f"{before} items wait and {rows} more are too many for {self._most}")
        self._rows = before + rows
        return before

    def _remove_cancelled(self) -> None:
        left = without_cancelled(self._batcher.clear(), self.answer_lock)
        self._rows = sum(request.rows for request in left)
        for request in left:
            self._batcher.add(request)

    def _clear(self) -> list[Request[Answer]]:
        self._rows, left = 0, self._batcher.clear()
        self._forget_streamer()
        return left

    def _start(self, slot: Slot, batch: Batch[Answer]) -> Requests:
        self._rows -= batch.rows
        taken = start(batch.requests, self.answer_lock)
        if taken:
            slot.out.append(taken)
            self._taken += len(taken)
        if self._rows:
            self._wake()
        return taken

    def _settle_each(self, requests: Requests, outputs: Sequence[Any]) -> None:
        """Give each request its outputs; those whose run ended early run again."""
        end = 0
        again: list[Request[Answer]] = []
        for request in requests:
            begin, end = end, end + request.rows
            part = outputs[begin:end]
            if any(type(each) is Outcome and each.again for each in part):
                again.append(request)
            else:
                settle([request], part, self.answer_lock)
        self._run_alone(again)

    def _run_alone(self, requests: Requests) -> None:
        """Put requests in the queue again, each to run without others."""
        timeout = self.answer_lock.timeout
        # Not from its arrival: it may have waited long before, in a long queue.
        deadline = None if timeout is None else monotonic() + timeout
        self._put_back([each._replace(alone=True, deadline=deadline) for each in requests])

    def _run_first(self, requests: Requests) -> None:
        """Put a batch that never ran into the queue again, before all others."""
        self._put_back([request._replace(urgency=-1) for request in requests])

    def _put_back(self, requests: Requests) -> None:
        """Put requests in the queue again; those whose deadline has passed fail."""
        now = monotonic()
        with self._lock:
            error = self._closed or self._suspended
            for request in requests if error is None else ():
                self._batcher.add(request)
                self._rows += request.rows
            late = self._batcher.expire(now)
            self._rows -= sum(request.rows for request in late)
            self._wake()
        if error is not None:
            fail(requests, error, self.answer_lock)
        if late:
            lost = WorkerLost("the worker process died, and the next ones, too")
            fail(late, lost, self.answer_lock)

    def _through(self, requests: Requests) -> None:
        """Take note that requests that were taken are settled, or back in the queue."""
        with self._lock:
            self._taken -= len(requests)
            if len(requests) > 1:  # the callers who were answered could not send others before
                self._batcher.restart_linger(monotonic())
        self._forget_streamer()

    def _forget_streamer(self) -> bool:
        """Let go of a streamer of which no request waits or runs, which may close the queue."""
        with self._lock:
            if self._streamer is None or self._taken or len(self._batcher):
                return False
            self._streamer = None
        return True

    def _sleep(self, slot: Slot, seconds: float | None) -> None:
        """Wait for a notification; a slot that wakes late could not see arrivals meanwhile."""
        due = None if seconds is None else monotonic() + seconds
        slot.condition.wait(seconds)
        if due is not None and (now := monotonic()) - due > self._batcher.policy.linger_seconds:
            self._batcher.restart_linger(now)

    def _wake(self) -> bool:
        """Have a slot ask for a batch, preferably an idle one; return whether it is idle."""
        ready = [slot for slot in self._sleepers if slot.has_room]
        idle = [slot for slot in ready if not slot.out]
        if idle or (ready and self._batcher.is_full):
            (idle or ready)[0].condition.notify()
        return bool(idle)

    def _wake_all(self) -> None:
        for slot in self._sleepers:
            slot.condition.notify()


def broke_off(name: str, error: BaseException) -> ModelError:
    """Return the error of requests whose run raised, such as a `SystemExit` of the model's."""
    made = ModelError(f"{name} broke off: {type(error).__name__}: {error}")
    made.__cause__ = error
    return made
