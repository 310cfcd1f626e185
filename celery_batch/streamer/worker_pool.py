"""Worker processes of a streamer, each with a thread that feeds it."""

from __future__ import annotations

import copy
import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import connection, process
from pickle import PicklingError
from typing import Any

from celery_batch.errors import LoadFailed, ModelError
from celery_batch.runtime.model import Model
from celery_batch.streamer import worker_main
from celery_batch.streamer.base import GRACE
from celery_batch.streamer.futures import fail
from celery_batch.streamer.recovery import break_off, give, lose, stand_first
from celery_batch.streamer.request_queue import RequestQueue, Requests, Slot
from celery_batch.streamer.spawn_hook import HookedName
from celery_batch.streamer.worker_main import Plan, pickled, unpack

__all__ = [
    "ProcessPool",
    "WorkerProcess",
]


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
            1, mp_context=context, initializer=worker_main.settle_in, initargs=(given, plan)
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
            self._executor.submit(worker_main.load).result()
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
        self._executor.submit(worker_main.run, payload, alone).add_done_callback(then)

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
        made.name = HookedName(name, partial(worker_main.arrive, self._plan))
        self._made.append(made)
        with _lock:
            _processes.append(made)
            _processes[:] = [each for each in _processes if each is made or each.is_alive()]
        return made

    def _why_it_ended(self) -> str:
        code = _exit_code(self._made)
        if code == worker_main.UNGUARDED:
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


logger = logging.getLogger(__name__)


#: Batches a process may have: one runs, one lies ready behind it.
_ROOM = 2


#: Seconds before a model that could not be loaded again is tried once more: first, at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0


#: How often it may fail in a row before those who wait hear of it; it is tried on.
_TRIES = 4


class ProcessPool:
    """
    The worker processes of a streamer.

    Args:
        request_queue: Where they take their batches.
        given: The model, pickled unless processes are forked.
        plans: One for each process.
        method: How they are started.
    """

    def __init__(
        self, request_queue: RequestQueue, given: Model | bytes, plans: Sequence[Plan], method: str
    ) -> None:
        self._request_queue = request_queue
        self._left = len(plans)
        self._down: set[object] = set()
        self._lock = threading.Lock()
        self._feeders = [
            _Feeder(self, request_queue, plan, partial(WorkerProcess, given, plan, method))
            for plan in plans
        ]
        for feeder in self._feeders:
            feeder.thread.start()

    def wait_until_loaded(self, seconds: float) -> bool:
        """
        Say whether all models are loaded, after so many seconds at most.

        Raises:
            LoadFailed: One of them could not be.
        """
        deadline = time.monotonic() + seconds
        for feeder in self._feeders:
            if not feeder.has_tried.wait(max(deadline - time.monotonic(), 0)):
                return False
            if feeder.trouble is not None:
                raise LoadFailed(str(feeder.trouble)) from feeder.trouble
        return True

    def give_up(self, error: LoadFailed) -> None:
        """Take note that one of them cannot begin; without any, the streamer closes."""
        with self._lock:
            self._left -= 1
            is_last, are_down = not self._left, len(self._down) == self._left
        if is_last:
            self._request_queue.close(error)
        elif are_down:
            self._request_queue.suspend(error)

    def fail_permanently(self, worker: object, error: LoadFailed) -> None:
        """Take note that one has been down for long; without any other, nobody waits on."""
        with self._lock:
            self._down.add(worker)
            if len(self._down) == self._left:
                self._request_queue.suspend(error)

    def recover(self, worker: object) -> None:
        """Take note that one serves."""
        with self._lock:
            self._down.discard(worker)
            self._request_queue.resume()

    def stop(self, grace: float) -> None:
        """End them all, after what they are running or so many seconds."""
        deadline = time.monotonic() + grace
        for feeder in self._feeders:
            feeder.stop(max(deadline - time.monotonic(), 0))


class _Feeder:
    """The thread that feeds one worker process."""

    def __init__(
        self, pool: ProcessPool, request_queue: RequestQueue, plan: Plan, make: Any
    ) -> None:
        self._pool = pool
        self._request_queue = request_queue
        self._make = make
        self._process: WorkerProcess | None = None
        #: Set when its first process has loaded its model, or could not.
        self.has_tried = threading.Event()
        self.trouble: LoadFailed | None = None
        #: Clear while a batch may have been taken that its process does not have yet.
        self._has_handed_over = threading.Event()
        self._has_handed_over.set()
        name = f"celery_batch streamer {plan.index}"
        self.thread = threading.Thread(target=self._work, name=name, daemon=True)

    def stop(self, grace: float) -> None:
        """End the process after what was taken; its thread ends by itself, the intake is closed."""
        deadline = time.monotonic() + grace
        if self.thread is not threading.current_thread():
            self._has_handed_over.wait(grace)
        process = self._process
        if process is not None:
            process.stop(max(deadline - time.monotonic(), 0))
        if self.thread is not threading.current_thread():
            self.thread.join(grace)

    def _work(self) -> None:
        idle_deaths = failures = 0
        while self._request_queue.is_open:
            self._process = None
            try:
                self._process = self._make()
                if self._request_queue.is_open:  # else whoever has closed it may not have seen ours
                    self._process.load()
            except BaseException as error:  # noqa: BLE001 (whatever it is, somebody has to hear)
                failures += 1
                if self._is_hopeless(error, failures):
                    break
                self._request_queue.wait_until_closed(_pause(failures))
            else:
                self.has_tried.set()
                self._pool.recover(self)
                failures = 0
                idle_deaths = 0 if self._feed(self._process) else idle_deaths + 1
            finally:
                if self._process is not None:
                    self._process.stop(0.0 if self._request_queue.is_open else GRACE)
            if idle_deaths > 1:  # one by chance; then something ends them as soon as they live
                self._request_queue.wait_until_closed(_pause(idle_deaths - 1))

    def _is_hopeless(self, error: BaseException, failures: int) -> bool:
        """Say whether the model cannot be loaded even once."""
        if not self._request_queue.is_open:
            return True
        trouble = error if isinstance(error, LoadFailed) else LoadFailed(f"{error!r}")
        if self.has_tried.is_set():
            logger.error("The model of a new worker process is not loaded: %s", trouble)
            self._request_queue.put_back(())
            if failures >= _TRIES:
                self._pool.fail_permanently(self, trouble)
            return False
        self.trouble = trouble
        self._pool.give_up(trouble)
        self.has_tried.set()
        return True

    def _feed(self, process: WorkerProcess) -> bool:
        """Feed a process until it ends; return whether it was asked anything."""
        self._has_handed_over.clear()
        try:
            return self._hand_over(process)
        finally:
            self._has_handed_over.set()

    def _hand_over(self, process: WorkerProcess) -> bool:
        slot = self._request_queue.slot(_ROOM)
        process.when_ended(partial(self._request_queue.retire, slot))
        is_asked = False
        while (requests := self._request_queue.take(slot)) is not None:
            payload = self._packed(slot, requests)
            if payload is None:
                continue
            then = partial(self._returned, slot, requests)
            is_asked = True
            try:
                process.run(payload, alone=len(requests) == 1, then=then)
            except RuntimeError:  # it has ended, or is to end: what it runs is told of that alone
                self._not_run(slot, requests)
        return is_asked

    def _packed(self, slot: Slot, requests: Requests) -> bytes | None:
        """Return a batch's items pickled; None if there is one that cannot be, which fails."""
        payload = pickled([item for request in requests for item in request.item.items])
        if payload is not None:
            return payload
        good = [request for request in requests if pickled(request.item.items) is not None]
        bad = [request for request in requests if request not in good]
        self._request_queue.done(slot, requests)
        if not bad:  # all at once were too much, or somebody is fickle
            break_off(
                self._request_queue, requests, PicklingError("not all at once"), "the request"
            )
            return None
        self._request_queue.put_back(good)
        error = ModelError("the request cannot be pickled for its way to a worker process")
        fail(bad, error, self._request_queue.answer_lock)
        self._request_queue.through(len(requests))
        return None

    def _returned(self, slot: Slot, requests: Requests, future: Future[bytes]) -> None:
        """Called by the executor's thread, for each batch."""
        try:
            outputs, broken = unpack(future.result())
        except BrokenExecutor:
            self._lost(slot)
            return
        except CancelledError:
            self._not_run(slot, requests)
            return
        except BaseException as error:  # noqa: BLE001 (the executor's thread has to live on)
            self._request_queue.done(slot, requests)
            break_off(self._request_queue, requests, error, "the model")
            return
        if broken is not None:
            logger.error("A worker process is replaced, since its device is broken: %s", broken)
            self._request_queue.retire(slot)
        self._request_queue.done(slot, requests)
        if outputs:
            give(self._request_queue, requests, outputs)
        else:
            lose(self._request_queue, [(), requests])

    def _not_run(self, slot: Slot, requests: Requests) -> None:
        """Give back a batch that did not get as far as the process."""
        self._request_queue.retire(slot)
        self._request_queue.done(slot, requests)
        stand_first(self._request_queue, requests)

    def _lost(self, slot: Slot) -> None:
        had = self._request_queue.recall(slot)
        if had:
            logger.error("A worker process died under %d requests", len(had[0]))
        lose(self._request_queue, had)


def _pause(times: int) -> float:
    """Return how long to wait after something has gone wrong so many times in a row."""
    return min(_FIRST_PAUSE * 2.0 ** min(times - 1, 9), _LONGEST_PAUSE)
