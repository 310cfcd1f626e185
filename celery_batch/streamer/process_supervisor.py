"""
Keeps the worker processes of one program running.

Rule 1: A process that dies is replaced; see `celery_batch.processes.supervisor` for the pauses.
Rule 2: If a process cannot begin, or cannot load its model, the program ends, as a Celery worker
        does: the next one would fail in the same way.  Where an earlier one could, it is replaced,
        until each process has failed to load its model `TRIES` times in a row.
Rule 3: A process whose function returns is done.
Rule 4: All processes end when this one ends, however it ends.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pickle import PicklingError
from types import FrameType
from typing import Any, NoReturn

from celery_batch.errors import ConfigurationError, LoadFailed
from celery_batch.processes.supervisor import Supervised
from celery_batch.streamer.parent_death import end_with_manager
from celery_batch.streamer.spawn_hook import HookedName, set_environment

__all__ = ["LOADED", "UNLOADED", "GpuWorkerManager", "Job", "keep_running", "report"]

#: Seconds to finish running batches when all of them are to end.
GRACE = 30.0

#: A shell's exit code of a program that Ctrl-C ended.
_INTERRUPTED = 130

#: How often in a row each process may fail to load its model before the program ends.
TRIES = 10

#: Seconds between two looks at the processes.
_POLL = 0.1

_BEGUN, _RETURNED = "begun", "returned"

#: What a worker reports to its supervisor: it has loaded its model, or cannot load it.
LOADED, UNLOADED = "loaded", "unloaded"

_STOPPING = (signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Job:
    """What one worker process does."""

    name: str  # the process' name
    target: Callable[..., object]  # called in it; a function that can be imported there
    args: tuple[Any, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)  # beside ours, set before any import


def keep_running(jobs: list[Job], start_method: str = "spawn") -> None:
    """Run each job in a process of its own, replaced when it dies, until all have returned."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ConfigurationError(
            "worker processes import the main program, and it starts worker processes again;"
            " put the call under: if __name__ == '__main__':"
        )
    workers = [_Worker(job, multiprocessing.get_context(start_method)) for job in jobs]
    with _signals_raise():
        try:
            _keep_running(workers)
        except KeyboardInterrupt:
            raise SystemExit(_INTERRUPTED) from None  # the usual way to stop it
        finally:
            _end([worker.process for worker in workers if worker.process is not None])


def _keep_running(workers: list[_Worker]) -> None:
    while left := [worker for worker in workers if not worker.is_done]:
        for worker in left:
            worker.reap()
        if all(worker.failures >= TRIES for worker in left):
            raise LoadFailed(f"given up after {TRIES} tries: {left[0].failure}")
        for worker in left:
            worker.start_when_due()
        time.sleep(_POLL)


def _end(running: list[Any]) -> None:
    try:
        for process in running:
            process.terminate()
        deadline = time.monotonic() + GRACE
        for process in running:
            process.join(max(deadline - time.monotonic(), 0.0))
    finally:  # also after a second Ctrl-C
        for process in running:
            process.kill()
            process.join()


class _Worker(Supervised):
    """The process of one job, and its successors."""

    def __init__(self, job: Job, context: Any) -> None:
        super().__init__(job.name)
        #: How often in a row the model could not be loaded, and why.
        self.failures, self.failure = 0, ""
        self.is_done = False
        self._job = job
        self._context = context
        self._pipe: Any = None
        self._has_begun = self._has_loaded = False

    def _start(self) -> Any:
        self._pipe, sender = self._context.Pipe(duplex=False)
        job, env = self._job, dict(self._job.env)
        name = HookedName(job.name, partial(set_environment, env))
        process = self._context.Process(
            target=_work, args=(sender, env, job.target, job.args), name=name
        )
        try:
            process.start()
        except (PicklingError, AttributeError, TypeError) as error:
            raise ConfigurationError(
                f"{job.name} cannot be sent to a process: {error}; define the model at the"
                f" top of a module, or choose mp_start_method='fork'"
            ) from error
        sender.close()
        return process

    def _exit_code(self) -> int | None:
        code: int | None = self.process.exitcode
        self._receive()  # after the exit code: nothing comes later
        return code

    def _receive(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while self._pipe.poll():
                word, more = self._pipe.recv()
                self._has_begun |= word == _BEGUN
                self.is_done |= word == _RETURNED
                if word == UNLOADED:
                    self.failures, self.failure = self.failures + 1, more
                elif word == LOADED:
                    self._has_loaded, self.failures = True, 0

    def _ended(self, code: int) -> None:
        self.process.join()
        self._pipe.close()
        if self.is_done:
            self.due = float("inf")
        elif not self._has_begun:
            raise LoadFailed(
                f"{self.name} ended with exit code {code} before it could begin;"
                f" its error message was printed above"
            )
        elif self.failures and not self._has_loaded:
            raise LoadFailed(self.failure)


def _work(
    pipe: Any, env: Mapping[str, str], target: Callable[..., object], args: tuple[Any, ...]
) -> None:
    global _supervisor  # noqa: PLW0603 (one process has one supervisor)
    set_environment(env)  # a fork has had no name to unpickle, and a main module may have its own
    for number in (*_STOPPING, signal.SIGINT):  # a fork has the handlers of the supervisor
        signal.signal(number, signal.SIG_DFL)
    end_with_manager()
    _supervisor = pipe
    report(_BEGUN)
    target(*args)
    report(_RETURNED)


#: The pipe to the supervisor of this process, if it has one.
_supervisor: Any = None


def report(word: str, more: str = "") -> None:
    """Send `LOADED`, or `UNLOADED` and why, to the supervisor of this process, if it has one."""
    if _supervisor is not None:
        with contextlib.suppress(OSError):  # the supervisor has ended, and this process ends soon
            _supervisor.send((word, more))


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """Have signals that end this process raise, so that it can end its workers first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _stop) for number in _STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)


class GpuWorkerManager:
    """
    Runs a subclass's `gpu_worker` in processes that are replaced when they die.

    service-streamer's older way to run workers: the user's function makes and runs each.
    """

    @staticmethod
    def gpu_worker(index: int, gpu_num: int) -> None:
        """
        Make a worker and run it; override this.

        Args:
            index: Which of the workers this is, from 0.
            gpu_num: Over how many GPUs the workers are to be spread.
        """
        raise NotImplementedError("a subclass must define gpu_worker(index, gpu_num)")

    def run_workers(self, worker_num: int = 8, gpu_num: int = 4) -> None:
        """
        Run worker processes until this one ends; those that die are replaced.

        A worker whose function returns is done; when all have returned, so does this.

        Args:
            worker_num: How many workers.
            gpu_num: Passed to each of them.

        Raises:
            ConfigurationError: ``worker_num`` is below 1, or the call is not guarded by
                ``if __name__ == "__main__"``.
            LoadFailed: A process could not start.
        """
        if worker_num < 1:
            raise ConfigurationError(f"worker_num: must be at least 1, got {worker_num!r}")
        jobs = [
            Job(f"worker {index}", self.gpu_worker, (index, gpu_num)) for index in range(worker_num)
        ]
        keep_running(jobs)
