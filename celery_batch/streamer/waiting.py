"""Who waits in a streamer's line, and what becomes of them when it ends."""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from time import monotonic

from celery_batch.batching.batcher import Batcher
from celery_batch.batching.policy import BatchPolicy
from celery_batch.batching.request import Request
from celery_batch.errors import BatchError, QueueFull, WorkerLost
from celery_batch.streamer.answer import Answer, Desk, fail, wanted

__all__ = ["Requests", "Waiting"]

Requests = Sequence[Request[Answer]]


class Waiting(ABC):
    """
    A line that is counted, and can be closed.

    Args:
        policy: When a batch leaves.
        desk: Of the streamer's answers.
        most: Items that may wait in line; None for any number.
    """

    def __init__(self, policy: BatchPolicy, desk: Desk, most: int | None) -> None:
        self.desk = desk
        self._size = policy.max_batch_size
        self._most = sys.maxsize if most is None else most
        self._batcher: Batcher[Answer] = Batcher(policy)
        # A signal's handler may close us in the midst of whatever its thread does here.
        self._lock = threading.RLock()
        self._rows = 0
        self._in_hands = 0
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
            fail(requests, refusal, self.desk)
        if late:
            fail(late, WorkerLost("the worker process died, and the next ones, too"), self.desk)

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
        fail(left, trouble, self.desk)
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
        fail(left, refusal, self.desk)

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

    def _close_when_through(self) -> bool:
        last_word = self._last_word
        if last_word is None or self._in_hands or len(self._batcher):
            return False
        self.close(last_word)
        return True
