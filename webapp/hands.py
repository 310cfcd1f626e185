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

#: Seconds after which it is asked what those who get on have done meanwhile, and which part of
#: them, at least, the processor has to have worked: else they waited for most of their jobs.
_STRETCH = 0.01
_LEAST_WORK = 0.4

#: Jobs after which those before them have waited long enough.
_MOST_OWED = 32

Job = Callable[[], object]


class Hands:
    """
    A pool of threads for many short jobs, any of which may be held up.

    Of threads that could all go on only one has the interpreter, and the others wake up to
    wait for it.  So one hand works off the line as long as it gets on; as soon as it does
    not, because its job waits for something, others come and help, twice as many each time.
    So it is where each job waits a little, and the processor with it.

    What jobs leave behind for others is passed on when a hand has nothing more to do, so that
    those wake up for many at once.

    Args:
        most: Threads there are at most.
        rest: Passes that on; called in any thread, after every job sooner or later: where the
            line does not end, after some of them.
    """

    def __init__(self, most: int, rest: Callable[[], object]) -> None:
        self._most = most
        self._rest = rest
        self._line: deque[Job] = deque()
        self._guard = threading.Lock()
        #: What wakes threads that have nothing to do.
        self._calls: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._count = 0
        #: Threads that are at a job or about to look for one.
        self._busy = 0
        #: Jobs taken since the beginning, and since the last rest.
        self._taken = 0
        self._owed = 0
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
        if not self._line or self._owed >= _MOST_OWED:
            self._pass_on()
        with self._guard:
            if not self._line:
                self._busy -= 1
                return None
            if self._owed and not self._behind.is_set():
                self._behind.set()  # this job may be held up
            self._taken += 1
            self._owed += 1
            return self._line.popleft()

    def _pass_on(self) -> None:
        self._owed = 0
        self._rest()

    def _watch(self) -> None:
        """Call more hands where nobody gets on, or all wait more than they work."""
        stretch = _Stretch()
        while self._is_open:
            if not self._behind.is_set():
                self._behind.wait()
                stretch = _Stretch()
            taken = self._taken
            time.sleep(_PATIENCE)
            with self._guard:
                if not (self._line or self._owed):
                    self._behind.clear()
                    continue
                is_stuck = taken == self._taken
                is_short = is_stuck or stretch.was_idle()
                more = min(self._busy, self._most - self._busy, len(self._line)) if is_short else 0
                self._busy += more
            self._call(more)
            if is_stuck and self._owed:
                self._pass_on()


class _Stretch:
    """Some time, and what this process has worked in it."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._since, self._worked = time.monotonic(), time.process_time()

    def was_idle(self) -> bool:
        """Say it at the end of each stretch; until then it was not."""
        seconds = time.monotonic() - self._since
        if seconds < _STRETCH:
            return False
        share = (time.process_time() - self._worked) / seconds
        self._begin()
        return share < _LEAST_WORK
