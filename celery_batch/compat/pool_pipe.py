"""The pipe to the only process of Celery's prefork pool."""

from __future__ import annotations

from typing import Any

from billiard.pool import READY
from celery.concurrency.asynpool import AsynPool

__all__ = ["PoolPipe"]


class PoolPipe:
    """
    What Celery's pool knows of its only process: a job can be written while another one runs.

    Args:
        pool: Celery's started prefork pool, which `is_supported`.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool._pool  # noqa: SLF001 (billiard's own pool)
        self._count_every_end()

    @staticmethod
    def is_supported(pool: Any) -> bool:
        """Return whether a pool works as we know it, and its processes run many jobs."""
        inner = getattr(pool, "_pool", None)
        return (
            isinstance(inner, AsynPool)
            and hasattr(inner, "_busy_workers")
            and not inner.synack
            and inner._maxtasksperchild != 1  # noqa: SLF001
        )

    @property
    def is_only_one(self) -> bool:
        """Whether there is one process and no more are wanted; pools can be told to grow."""
        pool = self._pool
        return bool(pool._processes == len(pool._pool) == 1)  # noqa: SLF001

    @property
    def is_written(self) -> bool:
        """Whether everything that was submitted has been written."""
        return not self._pool.outbound_buffer

    def mark_busy(self) -> None:
        """Have the pool write no further job."""
        self._pool._busy_workers.add(self._descriptor)  # noqa: SLF001

    def mark_idle(self) -> None:
        """Have the pool write the next job at once, behind the one that runs."""
        self._pool._busy_workers.discard(self._descriptor)  # noqa: SLF001

    @property
    def _descriptor(self) -> int:
        return int(self._pool._pool[0].inqW_fd)  # noqa: SLF001

    def _count_every_end(self) -> None:
        """
        Have billiard count each job that ends.

        A process that exits waits until all its results are read, by the count
        of its jobs; and billiard counts on one job after another.
        """
        pool = self._pool
        handlers = pool._result_handler.state_handlers  # noqa: SLF001
        handle = handlers[READY]

        def on_ready(job: Any, i: Any, obj: Any, fd: Any) -> None:
            result = pool._cache.get(job)  # noqa: SLF001
            pid = getattr(result, "_worker_pid", None)
            counter = pool._on_ready_counters.get(pid)  # noqa: SLF001
            before = counter.value if counter is not None else 0
            handle(job, i, obj, fd)
            if counter is not None and counter.value == before:
                with counter.get_lock():
                    counter.value += 1

        handlers[READY] = on_ready
