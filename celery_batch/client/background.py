"""Threads that run only while there is work, such as polling the broker for what calls need."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar, TypeVar

from celery.utils.functional import noop

from celery_batch.broker_depth import DepthReader, can_read_depth, open_depth_reader
from celery_batch.processes.per_process import PerProcess

__all__ = ["BrokerPoller", "OnDemandThread", "rest_after"]

T = TypeVar("T")

#: Seconds without work after which a thread ends.
IDLE = 5.0

#: Seconds that a poller sleeps for each second that a poll has taken, and at most.
_REST, _LONGEST_REST = 4.0, 1.0


def rest_after(seconds: float) -> float:
    """Return for how many seconds to leave a server alone after a poll that took so long."""
    return min(_REST * seconds, _LONGEST_REST)


class OnDemandThread:
    """A daemon thread that starts when there is work, and ends after some time without."""

    def __init__(
        self, name: str, work: Callable[[], float | None], close: Callable[[], object] = noop
    ) -> None:
        self._name = name
        #: Does what is due; returns the seconds until more is, or None if there is no more.
        self._work = work
        #: Called in the thread before it ends, while no other one can start.
        self._close = close
        #: Released to wake the thread: a signal handler can do that, unlike setting an Event.
        self._wakeup = threading.Lock()
        self._wakeup.acquire()
        #: Reentrant, since a signal handler may start the thread, too.
        self._guard = threading.RLock()
        self._thread: threading.Thread | None = None
        self._is_starting = False
        self._is_stopped = False

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def wake(self) -> None:
        """Have the work done soon, in a new thread if there is none; raise if it cannot start."""
        with suppress(RuntimeError):  # it has been woken already
            self._wakeup.release()
        with self._guard:
            if self._is_starting:  # by what a signal handler has interrupted
                return
            self._is_starting = True
            try:
                if not self.is_alive:
                    self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    self._thread.start()
            finally:
                self._is_starting = False

    def stop(self) -> None:
        """Have the thread end as soon as there is no more work; return without waiting."""
        self._is_stopped = True
        with suppress(RuntimeError):  # it has been woken already
            self._wakeup.release()

    def _run(self) -> None:
        pause: float | None = 0.0  # it was woken to start
        while True:
            idle = 0.0 if self._is_stopped else IDLE
            is_woken = self._wakeup.acquire(timeout=idle if pause is None else pause)
            if pause is None and not is_woken:
                self._close()  # before the next thread can start, which may open the same again
                if self._ends():
                    return
            pause = self._work()

    def _ends(self) -> bool:
        with self._guard:
            if self._wakeup.acquire(blocking=False):  # it was woken just now
                return False
            self._thread = None
            return True


class BrokerPoller(PerProcess, ABC):
    """Polls an app's broker in one thread, over one connection that the thread alone uses."""

    thread_name: ClassVar[str]

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self._can_read = can_read_depth(app)
        self._reader: DepthReader | None = None
        self._thread = OnDemandThread(self.thread_name, self._poll, self._close_reader)

    @abstractmethod
    def _poll(self) -> float | None:
        """Poll once; return the seconds until the next poll, None if no call needs one."""

    def _read(self, read: Callable[[DepthReader], T]) -> T:
        """Return what a function reads from the broker; connect again if the connection is lost."""
        was_open = self._reader is not None
        try:
            self._reader = self._reader or open_depth_reader(self._app)
            return read(self._reader)
        except Exception:
            self._close_reader()
            if not was_open:
                raise
        return self._read(read)

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            with suppress(Exception):
                reader.close()
