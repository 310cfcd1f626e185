"""The slots for batches in the processes of one worker."""

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

from celery_batch.compat.billiard import pool_processes
from celery_batch.worker.dispatch.batch_job import BatchJob

__all__ = ["Slots"]

logger = logging.getLogger(__name__)


class Slots:
    """Two slots for each pool process: for the batch that runs, and for one that is ready."""

    # A batch frees its slot when its model has ended, which is known when the next one begins.

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        #: Whether a batch runs inside the very call that submits it.
        self.run_inline = isinstance(pool, SoloPool)
        self._depth = 1 if self.run_inline else 2
        self._is_prefork = isinstance(pool, PreforkPool)
        #: The jobs that have left their task queues and have not ended.
        self.jobs: set[BatchJob] = set()
        #: Guards `jobs` and every decision that rests on them.
        self.lock = threading.RLock()  # a signal handler may run `on_end` on top of us

    @property
    def discards_on_disconnect(self) -> bool:
        """Whether a lost connection empties the pool of the jobs that no process has accepted."""
        flush = getattr(self._pool, "flush", None)  # the prefork pool has one once it runs
        return bool(flush) and getattr(flush, "__func__", None) is not BasePool.flush

    @property
    def processes(self) -> int:
        """How many batches can run at once; it changes with autoscale."""
        return int(self._pool.num_processes or 1)

    @property
    def model_processes(self) -> int:
        """How many processes have models: on other pools than prefork only the main process."""
        return self.processes if self._is_prefork else 1

    @property
    def is_free(self) -> bool:
        """Whether a batch submitted now would run at once."""
        return len(self.jobs) < self.processes

    @property
    def capacity(self) -> int:
        """How many batches may have left: running, and ready behind those."""
        return self.processes * self._depth

    @property
    def has_room_ahead(self) -> bool:
        """Whether one more batch may be made ready behind the running ones."""
        return len(self.jobs) - self.finishing < self.capacity

    @property
    def finishing(self) -> int:
        """How many batches are known to have ended their models, and need no slot any more."""
        # No more models run at once than there are processes.
        return max(sum(job.accepted for job in list(self.jobs)) - self.processes, 0)

    def busy(self) -> dict[int, float]:
        """Return which processes have a batch now, and since when."""
        known = [(each.began, each.pid) for each in list(self.jobs) if each.began and each.pid]
        # Of several on threads of one process, the first has kept it busy for longest.
        return {pid: began for began, pid in sorted(known, reverse=True)}

    def replace_process(self, pid: int | None, why: str) -> None:
        """End a process that cannot use its device any more, or this worker if it is its own."""
        if pid == os.getpid():
            logger.critical("This worker cannot use its device any more and stops: %s", why)
            state.should_stop = os.EX_SOFTWARE
        elif pid is not None:
            logger.error("Process %d cannot use its device any more and is replaced: %s", pid, why)
            _kill(pid)  # its exit handlers would want the device

    def kill(self, pids: set[int]) -> None:
        """Kill processes of the pool; the main process is left alone."""
        for pid in pids & {each.pid for each in pool_processes(self._pool)}:
            _kill(pid)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
