"""Threads that work off one line, as few at once as get on with it."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable

__all__ = ["Hands"]

log = logging.getLogger(__name__)

#: Seconds in which a hand that is not held up has taken its next job.
_PATIENCE = 0.002

Job = Callable[[], object]


class Hands:
    """
    A pool of threads for many short jobs, any of which may be held up.

    Of threads that could all go on only one has the interpreter, and the others wake up to
    wait for it.  So one hand works off the line as long as it gets on; as soon as it does
    not, because its job waits for something, others come and help, twice as many each time.

    Args:
        most: Threads there are at most.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._line: deque[Job] = deque()
        self._guard = threading.Lock()
        #: What wakes threads that have nothing to do.
        self._calls: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._count = 0
        #: Threads that are at a job or about to look for one.
        self._busy = 0
        #: Jobs taken since the beginning.
        self._taken = 0
        self._behind = threading.Event()
        self._is_open = True

    def give(self, job: Job) -> None:
        """
        Have a job done.

        Args:
            job: Called in one of the threads; what it raises is logged.
        """
        with self._guard:
            self._line.append(job)
            if is_first := not self._busy:
                self._busy = 1
            elif not self._behind.is_set():
                self._behind.set()
        if is_first:
            self._call(1)

    def shutdown(self, wait: bool = False) -> None:  # noqa: FBT001, FBT002 (as an executor's)
        """
        Have no more threads wait for jobs; those at work finish theirs.

        Args:
            wait: As for an executor; nothing is waited for.
        """
        del wait
        self._is_open = False
        self._behind.set()
        for _ in range(self._count):
            self._calls.put(None)

    def _call(self, number: int) -> None:
        """Have threads come that have been counted as busy."""
        for _ in range(number):
            with self._guard:
                which = self._count + 1
                if is_new := which <= self._busy:
                    self._count = which
            if not is_new:
                self._calls.put(None)
                continue
            threading.Thread(target=self._work, name=f"webapp-hand-{which}", daemon=True).start()
            if which == 1:
                threading.Thread(target=self._watch, name="webapp-watch", daemon=True).start()

    def _work(self) -> None:
        while self._is_open:
            while (job := self._next()) is not None:
                try:
                    job()
                except BaseException:  # one that ends a thread would keep its place taken
                    log.exception("a job has failed")
                del job  # what it holds need not wait for the next one
            self._calls.get()

    def _next(self) -> Job | None:
        with self._guard:
            if not self._line:
                self._busy -= 1
                return None
            self._taken += 1
            return self._line.popleft()

    def _watch(self) -> None:
        """Call more hands where nobody gets on."""
        while self._behind.wait() and self._is_open:
            taken = self._taken
            time.sleep(_PATIENCE)
            with self._guard:
                if not self._line:
                    self._behind.clear()
                    continue
                is_stuck = taken == self._taken
                more = min(self._busy, self._most - self._busy, len(self._line)) if is_stuck else 0
                self._busy += more
            self._call(more)
