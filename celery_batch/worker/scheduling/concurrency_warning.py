"""Warns that a worker loads its models once for each core by default."""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from celery.concurrency.prefork import TaskPool as PreforkPool

from celery_batch.formatting import number

__all__ = ["ConcurrencyWarning", "private_bytes"]

logger = logging.getLogger(__name__)

_KIB = 1024
_GIB = float(1 << 30)
_PROC = Path("/proc")
#: The limit of the container that this process is in, if it is in one.
_LIMIT = Path("/sys/fs/cgroup/memory.max")


class ConcurrencyWarning:
    """
    The warning of one worker.

    Args:
        models: The names of its models.
        processes: How many pool processes there will be.
    """

    def __init__(self, models: Collection[str], processes: int) -> None:
        self._models = models
        self._processes = processes
        self._has_logged_memory = False

    @classmethod
    def if_default(
        cls, worker: Any, tasks: Collection[Any], given: dict[str, Any]
    ) -> ConcurrencyWarning | None:
        """
        Return the warning if the number of processes is Celery's default, else None.

        Args:
            worker: Celery's worker.
            tasks: The batch tasks that it serves.
            given: The worker's options, as its steps receive them.
        """
        is_chosen = given.get("concurrency") or worker.app.conf.worker_concurrency
        models = sorted({task.model.__qualname__ for task in tasks if task.model})
        is_single = worker.concurrency == 1 or not issubclass(worker.pool_cls, PreforkPool)
        if is_chosen or given.get("autoscale") or not models or is_single:
            return None
        return cls(models, worker.concurrency)

    def log_processes(self) -> None:
        """Log how many processes will load the models."""
        logger.warning(
            "--concurrency is not set: each of %d pool processes, one for each core, loads %s;"
            " start the worker with --concurrency=1, or one process for each GPU",
            self._processes,
            ", ".join(self._models),
        )

    def log_memory(self, pid: int) -> None:
        """Log how much memory all processes will need, once, by the first that is warm."""
        if self._has_logged_memory:
            return
        self._has_logged_memory = True
        each, most = private_bytes(pid), _memory()
        if each is not None:
            logger.warning(
                "A pool process with its models takes %s GiB of memory, so %d of them will take"
                " %s GiB%s",
                number(each / _GIB),
                self._processes,
                number(each * self._processes / _GIB),
                f" of {number(most / _GIB)} GiB" if most else "",
            )


def private_bytes(pid: int) -> int | None:
    """Return the memory that a process shares with no other; None where that is unknown."""
    with suppress(OSError, ValueError):
        lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) * _KIB
    return None


def _memory() -> int | None:
    """Return the memory of this machine or container; None where that is unknown."""
    with suppress(OSError, ValueError):
        return int(_LIMIT.read_text())
    with suppress(OSError, ValueError, IndexError):
        return int((_PROC / "meminfo").read_text().split()[1]) * _KIB
    return None
