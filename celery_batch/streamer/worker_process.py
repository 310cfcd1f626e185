"""A streamer's worker process, from outside."""

from __future__ import annotations

import copy
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import connection, process
from typing import Any

from celery_batch.errors import LoadFailed
from celery_batch.serving.model import Model
from celery_batch.streamer import child
from celery_batch.streamer.child import Plan
from celery_batch.streamer.spawn_hook import HookedName

__all__ = ["WorkerProcess"]

#: Most seconds until a process that has ended has an exit code.
_REAPED = 2.0

_UNGUARDED = (
    "the main module uses a streamer while it is imported, which every worker process does"
    ' again; put what runs under `if __name__ == "__main__":`'
)


class WorkerProcess:
    """
    One process with one model, in a stock executor of its own.

    Args:
        given: The model, pickled unless processes are forked.
        plan: Of the process.
        method: How it is started: spawn, forkserver or fork.
    """

    def __init__(self, given: Model | bytes, plan: Plan, method: str) -> None:
        self._plan = plan
        self._kind: Any = multiprocessing.get_context(method)
        context: Any = copy.copy(self._kind)
        context.Process = self._process
        self._made: list[process.BaseProcess] = []
        self._executor = ProcessPoolExecutor(
            1, mp_context=context, initializer=child.settle_in, initargs=(given, plan)
        )

    def __repr__(self) -> str:
        return f"<WorkerProcess {self._plan.index}: {[each.pid for each in self._made]}>"

    def load(self) -> None:
        """
        Start the process and load its model.

        Raises:
            LoadFailed: It could not be loaded, or the process ended before it was.
        """
        try:
            self._executor.submit(child.load).result()
        except BrokenProcessPool as error:
            raise LoadFailed(self._why_it_ended()) from error
        except LoadFailed as error:
            raise LoadFailed(str(error)) from None

    def run(self, payload: bytes, *, alone: bool, then: Callable[[Future[bytes]], None]) -> None:
        """
        Send a batch.

        Args:
            payload: Its items, pickled.
            alone: All of it is one request.
            then: Called with its future, when that is done.

        Raises:
            BrokenProcessPool: The process has ended.
        """
        self._executor.submit(child.run, payload, alone).add_done_callback(then)

    def when_ended(self, then: Callable[[], None]) -> None:
        """
        Have a function called when the process has ended, idle or not.

        Args:
            then: Called in a thread of its own.
        """
        threading.Thread(
            target=_call_after,
            args=(self._made, then),
            name=f"celery_batch streamer {self._plan.index} watch",
            daemon=True,
        ).start()

    def stop(self, grace: float) -> None:
        """
        End the process.

        Args:
            grace: Seconds it gets for the batches that it was sent before it is killed; with
                none, those that it has not begun are cancelled.
        """
        self._executor.shutdown(wait=False, cancel_futures=not grace)
        for made in self._made:
            if made.pid is not None and not connection.wait([made.sentinel], grace):
                made.kill()

    def _process(self, *args: Any, **kwargs: Any) -> process.BaseProcess:
        made: process.BaseProcess = self._kind.Process(*args, **kwargs)
        name = f"celery_batch-streamer-{self._plan.index}"
        made.name = HookedName(name, partial(child.arrive, self._plan))
        self._made.append(made)
        with _lock:
            _processes.append(made)
            _processes[:] = [each for each in _processes if each is made or each.is_alive()]
        return made

    def _why_it_ended(self) -> str:
        code = _exit_code(self._made)
        if code == child.UNGUARDED:
            return _UNGUARDED
        return (
            f"the worker process ended with exit code {code} before its model was loaded;"
            " what it wrote to the standard error output says why"
        )


def _call_after(made: Sequence[process.BaseProcess], then: Callable[[], None]) -> None:
    connection.wait([each.sentinel for each in made])
    then()


def _exit_code(processes: Sequence[process.BaseProcess]) -> int | None:
    """Return how the last one ended; the executor's thread may be about to hear of it."""
    deadline = time.monotonic() + _REAPED
    while processes and processes[-1].exitcode is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return processes[-1].exitcode if processes else None


_lock = threading.Lock()
_processes: list[process.BaseProcess] = []


def _disown() -> None:
    """In a forked copy of this process: the processes are the parent's to wait for."""
    global _lock  # noqa: PLW0603 (another thread of the parent may have held it)
    _lock = threading.Lock()
    for made in _processes:
        # There is no public word for it; at exit this process would insist on joining them.
        getattr(process, "_children", set()).discard(made)
    _processes.clear()


os.register_at_fork(after_in_child=_disown)
