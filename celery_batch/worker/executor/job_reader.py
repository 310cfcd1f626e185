"""
Which thread of a pool process reads its jobs: the main thread or the worker threads, in turn.

The main thread reads, and runs what it reads, until it hands a job over to the worker threads, or
another one comes beside a lone batch.  From then on worker threads read, until they read a job
that the main thread runs from beginning to end.  The main thread reads again after that job.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

__all__ = ["JobReader"]

#: What wakes the worker thread that waits at the pipe: nothing, or one job.
_NO_JOB = select.EPOLLONESHOT
_ONE_JOB = select.EPOLLIN | _NO_JOB


class _Reads(Enum):
    """Who reads jobs."""

    MAIN = auto()
    #: The main thread runs a lone batch: worker threads read if a job comes before its end.
    FIRST_COMER = auto()
    THREADS = auto()


class JobReader:
    """Reads jobs from the pool, either on the main thread or on a worker thread."""

    def __init__(self, pipe: int, receive: Callable[[], Any]) -> None:
        self._pipe = pipe
        #: Read a job on the main thread, while that reads; None if interrupted.
        self.receive = receive
        self._reads = _Reads.MAIN
        #: Guards the end of `FIRST_COMER`; each other state is changed by those who read.
        self._lock = threading.Lock()
        #: What the main thread has read for the worker threads, and what wakes them for it.
        self._handed_over: Any = None
        self._wake = os.eventfd(0)
        self._either = select.epoll()
        self._either.register(self._wake, select.EPOLLIN)
        self._either.register(pipe, _NO_JOB)

    # These methods run on the main thread.

    def hand_over(self, job: Any) -> None:
        """Have worker threads read from now on, first this job."""
        self._handed_over = job  # first: a worker thread reads as soon as it is their turn
        self._reads = _Reads.THREADS
        os.eventfd_write(self._wake, 1)

    def watch(self) -> None:
        """Have worker threads read from the next job on, if it comes before `unwatch`."""
        self._reads = _Reads.FIRST_COMER
        self._either.modify(self._pipe, _ONE_JOB)  # which wakes no thread before there is a job

    def unwatch(self) -> bool:
        """Return whether worker threads have begun to read since `watch`."""
        with self._lock:
            if self._reads is not _Reads.FIRST_COMER:  # they may have given it back, too
                return True
            self._reads = _Reads.MAIN
            self._either.modify(self._pipe, _NO_JOB)
            return False

    # These methods run on one worker thread at a time.

    def receive_in_thread(self) -> Any:
        """Read a job as soon as it is the worker threads' turn."""
        while self._reads is not _Reads.THREADS:
            self._await_turn()
        job, self._handed_over = self._handed_over, None
        while not job:
            job = self.receive()
        return job

    def _await_turn(self) -> None:
        for descriptor, _ in self._either.poll():
            if descriptor == self._wake:
                os.eventfd_read(self._wake)
        with self._lock:
            if self._reads is _Reads.FIRST_COMER:  # else the main thread was faster
                self._reads = _Reads.THREADS

    def give_back(self) -> None:
        """Have the main thread read, when it has run what it gets next."""
        self._reads = _Reads.MAIN
