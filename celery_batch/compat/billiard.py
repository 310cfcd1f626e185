"""Uses of billiard's private parts."""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable, Generator
from inspect import GEN_SUSPENDED, getgeneratorstate, isgenerator
from multiprocessing.connection import wait
from typing import Any

import billiard
from billiard import common
from billiard.pool import READY
from celery.concurrency.asynpool import AsynPool

__all__ = [
    "PoolPipe",
    "current_worker",
    "finish_partial_reads",
    "is_in_pool",
    "job_pipe",
    "pool_processes",
    "read_before_flush",
    "replace_loop",
    "signalled_processes",
    "terminate_handler_fired",
]

logger = logging.getLogger(__name__)

#: Seconds.  An idle process reports within a millisecond that it has accepted a job.
_TIMEOUT = 1.0

#: Seconds that the rest of a message may take.
_REST_TIMEOUT = 10.0

#: What `replace_loop` and the worker threads need of billiard's worker.
_WORKER = ("wait_for_job", "inq", "outq", "inqW_fd", "_ensure_messages_consumed")

#: What `PoolPipe` needs of Celery's pool.
_ASYNPOOL = (
    "_busy_workers",
    "_cache",
    "_maxtasksperchild",
    "_on_ready_counters",
    "_pool",
    "_processes",
    "_result_handler",
    "outbound_buffer",
    "synack",
)


def pool_processes(pool: Any) -> list[Any]:
    """Return the processes of Celery's prefork pool; none before it starts or after it stops."""
    started = getattr(pool, "_pool", None)
    return list(getattr(started, "_pool", None) or ())  # billiard has no public list


def signalled_processes(pool: Any) -> set[int]:
    """Return the ids of the processes of Celery's prefork pool that were told to end."""
    return {each.pid for each in pool_processes(pool) if getattr(each, "_job_terminated", False)}


def terminate_handler_fired() -> bool:
    """Return whether this process has begun to handle a signal that ends it."""
    fired = getattr(common, "terminate_handler_fired", None)
    # Below 4.3.1 there is only the flag that it reads.
    return bool(common._should_have_exited[0] if fired is None else fired())


def is_in_pool(result: Any) -> bool:
    """Return whether a pool will still report the end of a job."""
    return result._job in result._cache


def current_worker() -> Any:
    """Return billiard's worker in this pool process; None if its loop cannot be replaced."""
    worker: Any = getattr(billiard.current_process(), "_target", None)
    missing = [name for name in _WORKER if not hasattr(worker, name)]
    if missing:
        logger.warning("This billiard has no %s: batches run one after another", missing)
        return None
    return worker if worker.synq is None and worker.maxtasks != 1 else None


def job_pipe(worker: Any) -> int:
    """Return the descriptor from which billiard's worker reads jobs."""
    return int(worker.inq._reader.fileno())


def replace_loop(
    worker: Any,
    wait_for_job: Callable[[], Any],  # returns None if it was interrupted
    put: Callable[[Any], Any],
    ensure_messages_consumed: Callable[..., Any],
) -> tuple[Callable[[Any], Any], Callable[..., Any]]:
    """Replace what the loop of billiard's worker calls, and return the last two as they were."""
    before = worker.outq.put, worker._ensure_messages_consumed
    worker.wait_for_job, worker.outq.put = wait_for_job, put
    worker._ensure_messages_consumed = ensure_messages_consumed
    return before


class PoolPipe:
    """What Celery's pool knows of its only process: a job can be written while another one runs."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool._pool
        #: The job whose end the pool reports at this moment.
        self._ending: Any = None
        self._watch_ends()

    @staticmethod
    def why_not(pool: Any) -> str:
        """Return why jobs of a pool cannot be written ahead; nothing if they can."""
        inner = getattr(pool, "_pool", None)
        if not isinstance(inner, AsynPool):
            return "the pool is not Celery's prefork pool"
        missing = [name for name in _ASYNPOOL if not hasattr(inner, name)]
        if missing:
            return f"Celery's pool has no {', '.join(missing)}"
        if READY not in getattr(inner._result_handler, "state_handlers", ()):
            return "billiard's handler of results has no state_handlers"
        is_single = inner.synack or inner._maxtasksperchild == 1
        return "each process runs one task" if is_single else ""

    @property
    def is_only_one(self) -> bool:
        """Whether there is one process and no more are wanted; pools can be told to grow."""
        pool = self._pool
        return bool(pool._processes == len(pool._pool) == 1)

    @property
    def is_written(self) -> bool:
        """Whether everything that was submitted has been written."""
        return not self._pool.outbound_buffer

    def mark_busy(self) -> None:
        """Have the pool write no further job."""
        self._pool._busy_workers.add(self._descriptor)

    def mark_idle(self) -> None:
        """Have the pool write the next job at once, behind the one that runs."""
        self._pool._busy_workers.discard(self._descriptor)

    def is_ending(self, result: Any) -> bool:
        """Return whether the pool reports the end of a job at this moment."""
        # It counts the process as idle by then, and gives it the next job before it calls back.
        return result is not None and result is self._ending

    @property
    def _descriptor(self) -> int:
        return int(self._pool._pool[0].inqW_fd)

    def _watch_ends(self) -> None:
        """Note the job that ends, and have billiard count it, which counts on one after another."""
        # A process that exits waits until all its results are read, by the count of its jobs.
        pool = self._pool
        handlers = pool._result_handler.state_handlers
        handle = handlers[READY]

        def on_ready(job: Any, i: Any, obj: Any, fd: Any) -> None:
            result = pool._cache.get(job)
            pid = getattr(result, "_worker_pid", None)
            counter = pool._on_ready_counters.get(pid)
            before = counter.value if counter is not None else 0
            outer, self._ending = self._ending, result
            try:
                handle(job, i, obj, fd)
            finally:
                self._ending = outer
            if counter is not None and counter.value == before:
                with counter.get_lock():
                    counter.value += 1

        handlers[READY] = on_ready


def read_before_flush(pool: Any, hub: Any) -> None:
    """Have a pool read the messages of its processes before each flush."""
    # When the consumer stops or loses its connection, the pool throws away each job that no process
    # is known to have accepted.  One may have accepted it, with its message still unread: the batch
    # would run here, and be given back and run again elsewhere.
    flush, billiard_pool = pool.flush, pool._pool

    def flush_after_reading() -> None:
        try:
            _read_all(billiard_pool, hub)
            behind, _ = _unaccepted(billiard_pool)
        except Exception:
            logger.exception("Could not read the pool's messages; some batches may run twice")
            flush()
            return
        cache, busy_workers = billiard_pool._cache, billiard_pool._busy_workers
        jobs = {number: job for number, job in cache.items() if job._accepted} | behind
        busy = set(busy_workers)
        flush()
        # It forgets those behind running ones; before 5.6 also these, and that processes are busy.
        for number, job in jobs.items():
            process = job._write_to
            is_alive = process is not None and process._is_alive()
            # One may be ready by now: the flush has found that its process is lost.
            if not job.ready() and (is_alive or number not in behind):
                cache.setdefault(number, job)
                if is_alive and process.inqW_fd in busy:
                    busy_workers.add(process.inqW_fd)

    pool.flush = flush_after_reading


def finish_partial_reads(pool: Any) -> None:
    """Have a pool that stops read the rest of a message that the event loop has read in part."""
    # Celery before 5.7 takes the rest for a message, and gives up the process, which waits for half
    # a minute until its result is read: the shutdown waits for it, and the batch runs again.
    handler: Any = getattr(pool._pool, "_result_handler", None)
    if hasattr(handler, "_finish_partial_read") or not hasattr(handler, "_recv_message"):
        return
    receive, flush = handler._recv_message, handler._flush_outqueue
    messages: dict[int, Generator[None]] = {}

    def receive_noted(add_reader: Any, pipe: int, *details: Any) -> Generator[None]:
        messages[pipe] = message = receive(add_reader, pipe, *details)
        return message  # type: ignore[no-any-return]

    def flush_after_message(pipe: int, remove: Any, processes: Any, *details: Any) -> Any:
        message = messages.pop(pipe, None)
        if (
            message is None
            or getgeneratorstate(message) != GEN_SUSPENDED
            or pipe not in processes  # it is closed, or another connection's by now
        ):
            return flush(pipe, remove, processes, *details)
        return None if _read_rest(message, pipe) else remove(pipe)

    handler._recv_message, handler._flush_outqueue = receive_noted, flush_after_message


def _read_rest(message: Generator[None], pipe: int) -> bool:
    """Read a message to its end, and handle it; return whether that was possible."""
    deadline = time.monotonic() + _REST_TIMEOUT
    try:
        while wait([pipe], max(deadline - time.monotonic(), 0.0)):  # of any number, unlike `select`
            next(message)
    except StopIteration:
        return True
    except (OSError, EOFError):
        return False
    return False


def _read_all(pool: Any, hub: Any) -> None:
    """Read until each process that was sent a job, and runs none, has accepted it."""
    _finish_writing(pool)
    deadline = time.monotonic() + _TIMEOUT
    while (left := deadline - time.monotonic()) > 0:
        _, pipes = _unaccepted(pool)
        if not pipes:
            return
        for pipe in select.select(pipes, [], [], left)[0]:
            _read(hub, pipe)


def _finish_writing(pool: Any) -> None:
    """Write the rest of partly written jobs; their processes will run them in any case."""
    for job in list(pool._cache.values()):
        find_writer = getattr(job, "_writer", None)
        writer = find_writer() if find_writer and not job._accepted else None
        if job._write_to is not None and writer in pool._active_writers:
            pool._flush_writer(job._write_to, writer)


def _unaccepted(pool: Any) -> tuple[dict[Any, Any], set[int]]:
    """Return the jobs in living processes that wait behind running ones, and the others' pipes."""
    jobs = pool._cache
    busy = {job._worker_pid for job in jobs.values() if job._accepted}
    behind, pipes = {}, set()
    for number, job in jobs.items():
        process = job._write_to
        if process and not job._accepted and process._is_alive():
            if process.pid in busy:
                behind[number] = job  # it will run in any case
            else:
                pipes.add(process.outqR_fd)
    return behind, pipes


def _read(hub: Any, pipe: int) -> None:
    """Read one message, or a part of it, as the event loop would."""
    callback, arguments = hub.readers.get(pipe, (None, ()))
    if isgenerator(callback):
        next(callback, None)
    elif callback is not None:
        callback(*arguments)
