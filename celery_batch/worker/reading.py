"""
Who reads what the pool writes to its process: the main thread, or clerks beside it.

Rule 1: the main thread reads while there is nothing to do beside it.  A lone batch is
        its own then, from beginning to end: no thread has to wake another.
Rule 2: what has others behind it is handed to the clerks, who read from then on.
Rule 3: once they have nothing to read and nothing to settle, the main thread reads.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["Reading"]


class Reading:
    """
    Says whose turn it is to read.

    Args:
        pipe: The descriptor that jobs are read from.
        receive: Reads one; None if it was interrupted.
    """

    def __init__(self, pipe: int, receive: Callable[[], Any]) -> None:
        self._pipe = pipe
        #: Read one; for the main thread while it is its turn.
        self.receive = receive
        self._handed_over: Any = None
        #: Set while clerks read.
        self._is_theirs = threading.Event()
        self._open = 0
        self._lock = threading.Lock()
        #: Rung when clerks have settled all, for the one of them that waits at the pipe.
        self._bell, self._cord = os.pipe()
        self._either = select.poll()
        self._either.register(pipe, select.POLLIN)
        self._either.register(self._bell, select.POLLIN)

    def hand_over(self, job: Any) -> None:
        """
        Have clerks read from now on, and begin with this; asked by the main thread.

        Args:
            job: What it has read.
        """
        self._handed_over = job
        self._is_theirs.set()

    def receive_beside(self) -> Any:
        """
        Read one beside the main thread; asked by one clerk at a time.

        Returns:
            The job.  None if there is none, nor anything to settle: the main thread
            reads from now on, and is to be told.
        """
        self._is_theirs.wait()
        job, self._handed_over = self._handed_over, None
        while not job and self._is_there_more():
            job = self.receive()
        if not job:
            self._is_theirs.clear()
        return job

    def _is_there_more(self) -> bool:
        while True:
            ready = {descriptor for descriptor, _ in self._either.poll()}
            if self._pipe in ready:
                return True
            os.read(self._bell, 1)
            if not self._open:
                return False

    def begin(self) -> None:
        """Say that a clerk has a job that it has read."""
        with self._lock:
            self._open += 1

    def end(self) -> None:
        """Say that a job which was read is over."""
        with self._lock:
            self._open -= 1
            is_last = not self._open
        if is_last:
            os.write(self._cord, b"\0")
