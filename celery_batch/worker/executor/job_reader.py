"""Reads a pool process' jobs on its main thread or on a worker thread, and changes between them."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

__all__ = ["JobReader"]

#: What wakes the thread that waits at the pipe: nothing, any job, or one job only.
_NO_JOB, _ANY_JOB = select.EPOLLONESHOT, select.EPOLLIN
_ONE_JOB = _ANY_JOB | _NO_JOB


class _Reads(Enum):
    """Who reads jobs."""

    MAIN = auto()
    MAIN_FIRST = auto()  # until the next job comes: then worker threads
    THREADS = auto()


class JobReader:
    """Reads jobs from the pool, either on the main thread or on a worker thread."""

    def __init__(self, pipe: int, receive: Callable[[], Any]) -> None:
        self._pipe = pipe
        #: Read a job on the main thread, while that reads; None if interrupted.
        self.receive = receive
        self._first: Any = None
        self._reads = _Reads.MAIN
        self._open = 0
        self._lock = threading.Lock()
        #: Wakes the thread that waits at the pipe when it has a first job, or all have finished.
        self._wake_reader, self._wake_writer = os.pipe()
        self._either = select.epoll()
        self._either.register(pipe, _NO_JOB)
        self._either.register(self._wake_reader, select.EPOLLIN)

    def switch_to_threads(self, job: Any) -> None:
        """Have worker threads read from now on, first this job; called on the main thread."""
        self._first = job
        self._read_in_threads()
        os.write(self._wake_writer, b"\0")

    def _read_in_threads(self) -> None:
        self._reads = _Reads.THREADS
        self._either.modify(self._pipe, _ANY_JOB)

    def watch(self) -> None:
        """Have worker threads read from the next job on; called on the main thread."""
        self._reads = _Reads.MAIN_FIRST
        self._either.modify(self._pipe, _ONE_JOB)  # which wakes no thread before there is a job

    def unwatch(self) -> bool:
        """Return whether worker threads have begun to read since `watch`; they go on then."""
        with self._lock:
            if self._reads is not _Reads.MAIN_FIRST:  # they may have stopped again, too
                return True
            self._reads = _Reads.MAIN
            self._either.modify(self._pipe, _NO_JOB)
            return False

    def receive_in_thread(self) -> Any:
        """Read a job on a worker thread; None if the main thread is to read again."""
        self._await_turn()
        job, self._first = self._first, None
        while not job and self._has_more():
            job = self.receive()
        if not job:
            self.switch_to_main()
        return job

    def switch_to_main(self) -> None:
        """Have the main thread read from now on; called on a worker thread."""
        self._either.modify(self._pipe, _NO_JOB)
        self._reads = _Reads.MAIN

    def _await_turn(self) -> None:
        while self._reads is not _Reads.THREADS:
            if not self._await_job():
                continue
            with self._lock:
                if self._reads is _Reads.MAIN_FIRST:  # else the main thread was faster
                    self._read_in_threads()

    def _has_more(self) -> bool:
        while not self._await_job():
            if not self._open:
                return False
        return True

    def _await_job(self) -> bool:
        """Return at a job or when woken, and which of the two it is."""
        ready = {descriptor for descriptor, _ in self._either.poll()}
        if self._pipe in ready:
            return True
        os.read(self._wake_reader, 1)
        return False

    def begin(self) -> None:
        """Count a job that a worker thread has read."""
        with self._lock:
            self._open += 1

    def end(self) -> None:
        """Count the end of such a job."""
        with self._lock:
            self._open -= 1
            is_last = not self._open
        if is_last:
            os.write(self._wake_writer, b"\0")
