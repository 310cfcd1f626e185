"""

Reads what pool processes have sent, before billiard's pool discards it.

Whenever the consumer stops or loses its connection, the pool throws away every
job that no process is known to have taken.  A job may have been taken all the
same, its process's word for it still lying unread in a pipe: its batch would run,
and be given back and run again elsewhere.
"""

from __future__ import annotations

import logging
import select
import time
from inspect import isgenerator
from typing import Any

__all__ = ["listen_before_flush"]

logger = logging.getLogger(__name__)

#: Seconds.  An idle process says within a millisecond that it has taken a job.
_TIMEOUT = 1.0


def listen_before_flush(pool: Any, hub: Any) -> None:
    """
    Have a pool hear its processes out before it flushes, for the rest of its life.

    Args:
        pool: Celery's started prefork pool.
        hub: The event loop that reads its pipes.
    """
    flush, processes = pool.flush, pool._pool  # noqa: SLF001 (billiard's own pool)

    def flush_after_listening() -> None:
        try:
            _hear_out(processes, hub)
            bound = _bound_to_run(processes)
        except Exception:
            logger.exception("Could not hear the pool out; some batches may run twice")
            bound = []
        for job in bound:
            job._accepted = True  # noqa: SLF001
        try:
            flush()
        finally:
            _take_back(bound)

    pool.flush = flush_after_listening


def _hear_out(pool: Any, hub: Any) -> None:
    _finish_writing(pool)
    deadline = time.monotonic() + _TIMEOUT
    while (left := deadline - time.monotonic()) > 0 and (pipes := _silent_pipes(pool)):
        for pipe in select.select(pipes, [], [], left)[0]:
            _read(hub, pipe)


def _finish_writing(pool: Any) -> None:
    """Write on where a job has been written in part; its process will run it in any case."""
    for job in list(pool._cache.values()):  # noqa: SLF001
        find_writer = getattr(job, "_writer", None)
        writer = find_writer() if find_writer and not job._accepted else None  # noqa: SLF001
        if job._write_to is not None and writer in pool._active_writers:  # noqa: SLF001
            pool._flush_writer(job._write_to, writer)  # noqa: SLF001


def _sent(pool: Any) -> list[Any]:
    """Return the jobs that living processes have been sent and have not accepted."""
    jobs = list(pool._cache.values())  # noqa: SLF001
    sent = [job for job in jobs if job._write_to and not job._accepted]  # noqa: SLF001
    return [job for job in sent if job._write_to._is_alive()]  # noqa: SLF001


def _silent_pipes(pool: Any) -> list[int]:
    """Return the pipes of the processes that have been sent a job and said nothing yet."""
    bound = _bound_to_run(pool)
    return list({job._write_to.outqR_fd for job in _sent(pool) if job not in bound})  # noqa: SLF001


def _bound_to_run(pool: Any) -> list[Any]:
    """Return the jobs that lie in a process behind another that runs: they run in any case."""
    jobs = list(pool._cache.values())  # noqa: SLF001
    busy = {job._worker_pid for job in jobs if job._accepted}  # noqa: SLF001
    return [job for job in _sent(pool) if job._write_to.pid in busy]  # noqa: SLF001


def _take_back(bound: list[Any]) -> None:
    """Say of jobs what is true again: that no process has accepted them, unless one has."""
    for job in bound:
        if job._worker_pid is None:  # noqa: SLF001
            job._accepted = False  # noqa: SLF001
            if not job._write_to._is_alive():  # noqa: SLF001
                job.discard()


def _read(hub: Any, pipe: int) -> None:
    """Read one message, or what there is of it, as the event loop would."""
    callback, arguments = hub.readers.get(pipe, (None, ()))
    if isgenerator(callback):
        next(callback, None)
    elif callback is not None:
        callback(*arguments)
