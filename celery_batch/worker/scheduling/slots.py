"""The places for batches in the processes of one worker."""

from __future__ import annotations

import logging
import os
import signal
import threading
from contextlib import suppress
from typing import Any

from celery.concurrency.base import BasePool
from celery.concurrency.prefork import TaskPool as PreforkPool
from celery.concurrency.solo import TaskPool as SoloPool
from celery.worker import state

__all__ = ["Slots"]

logger = logging.getLogger(__name__)


class Slots:
    """
    The model slots of one worker: one per pool process, and one batch ready behind each.

    While a batch runs, the next one waits formed, so that the device need not
    wait for it to be gathered.

    Args:
        pool: Celery's pool.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        #: Whether a batch runs inside the very call that submits it.
        self.run_inline = isinstance(pool, SoloPool)
        self._depth = 1 if self.run_inline else 2
        self.in_flight = 0
        #: Guards `in_flight` and every decision that rests on it.
        self.lock = threading.RLock()  # a signal's handler may hear of an end

    @property
    def are_flushed(self) -> bool:
        """Whether a lost connection empties the pool of what no process has accepted."""
        flush = getattr(self._pool, "flush", None)  # the prefork pool has one once it runs
        return bool(flush) and getattr(flush, "__func__", None) is not BasePool.flush

    @property
    def processes(self) -> int:
        """How many batches can run at once; it changes with autoscale."""
        return max(int(self._pool.num_processes or 1), 1)

    @property
    def model_processes(self) -> int:
        """How many processes have models: on other pools than prefork it is this one alone."""
        return self.processes if isinstance(self._pool, PreforkPool) else 1

    @property
    def pids(self) -> set[int]:
        """Of those processes; one that is just being replaced may be missing."""
        if not isinstance(self._pool, PreforkPool):
            return {os.getpid()}
        started = getattr(self._pool, "_pool", None)  # billiard's, which has no public list
        return {each.pid for each in list(getattr(started, "_pool", None) or ())}

    @property
    def free(self) -> bool:
        """Whether a batch submitted now would run at once."""
        return self.in_flight < self.processes

    @property
    def capacity(self) -> int:
        """How many batches may be on their way: running, and ready behind those."""
        return self.processes * self._depth

    @property
    def room_ahead(self) -> bool:
        """Whether one more batch may be made ready behind the running ones."""
        return self.in_flight < self.capacity

    def recycle(self, pid: int | None, why: str) -> None:
        """
        End a process that is of no more use; the pool puts another in its place.

        A worker that runs models in its own process stops, for its supervisor to
        restart it; what it holds goes back to the broker.

        Args:
            pid: The process.
            why: What is wrong with it.
        """
        if pid == os.getpid():
            logger.critical("This worker can use its device no more and stops: %s", why)
            state.should_stop = os.EX_SOFTWARE
        elif pid is not None:
            logger.error("Process %d can use its device no more and is replaced: %s", pid, why)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # its exit handlers would want the device

    def kill(self, pids: set[int]) -> None:
        """
        End processes of the pool at once.

        Args:
            pids: Which; this worker's own main process is left alone.
        """
        for pid in (pids & self.pids) - {os.getpid()}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
