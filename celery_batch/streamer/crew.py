"""Worker processes, each with a thread that feeds it, and a new one in place of each that dies."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Future
from functools import partial
from pickle import PicklingError
from typing import Any

from celery_batch.errors import LoadFailed, ModelError
from celery_batch.serving.model import Model
from celery_batch.streamer.answer import fail
from celery_batch.streamer.cargo import pickled, unpack
from celery_batch.streamer.child import Plan
from celery_batch.streamer.intake import Intake, Slot
from celery_batch.streamer.outputs import break_off, give, lose, stand_first
from celery_batch.streamer.streaming import GRACE
from celery_batch.streamer.waiting import Requests
from celery_batch.streamer.worker_process import WorkerProcess

__all__ = ["ProcessCrew"]

logger = logging.getLogger(__name__)

#: Batches a process may have: one runs, one lies ready behind it.
_ROOM = 2

#: Seconds before a model that could not be loaded again is tried once more: first, at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0

#: How often it may fail in a row before those who wait hear of it; it is tried on.
_TRIES = 4


class ProcessCrew:
    """
    The worker processes of a streamer.

    Args:
        intake: Where they take their batches.
        given: The model, pickled unless processes are forked.
        plans: One for each process.
        method: How they are started.
    """

    def __init__(
        self, intake: Intake, given: Model | bytes, plans: Sequence[Plan], method: str
    ) -> None:
        self._intake = intake
        self._left = len(plans)
        self._down: set[object] = set()
        self._lock = threading.Lock()
        self._feeders = [_Feeder(self, intake, plan, partial(WorkerProcess, given, plan, method))
                         for plan in plans]  # fmt: skip
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
            self._intake.close(error)
        elif are_down:
            self._intake.suspend(error)

    def despair(self, worker: object, error: LoadFailed) -> None:
        """Take note that one has been down for long; without any other, nobody waits on."""
        with self._lock:
            self._down.add(worker)
            if len(self._down) == self._left:
                self._intake.suspend(error)

    def recover(self, worker: object) -> None:
        """Take note that one serves."""
        with self._lock:
            self._down.discard(worker)
            self._intake.resume()

    def stop(self, grace: float) -> None:
        """End them all, after what they are running or so many seconds."""
        deadline = time.monotonic() + grace
        for feeder in self._feeders:
            feeder.stop(max(deadline - time.monotonic(), 0))


class _Feeder:
    """The thread that feeds one worker process."""

    def __init__(self, crew: ProcessCrew, intake: Intake, plan: Plan, make: Any) -> None:
        self._crew = crew
        self._intake = intake
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
        while self._intake.is_open:
            self._process = None
            try:
                self._process = self._make()
                if self._intake.is_open:  # else whoever has closed it may not have seen ours
                    self._process.load()
            except BaseException as error:  # noqa: BLE001 (whatever it is, somebody has to hear)
                failures += 1
                if self._is_hopeless(error, failures):
                    break
                self._intake.wait_until_closed(_pause(failures))
            else:
                self.has_tried.set()
                self._crew.recover(self)
                failures = 0
                idle_deaths = 0 if self._feed(self._process) else idle_deaths + 1
            finally:
                if self._process is not None:
                    self._process.stop(0.0 if self._intake.is_open else GRACE)
            if idle_deaths > 1:  # one by chance; then something ends them as soon as they live
                self._intake.wait_until_closed(_pause(idle_deaths - 1))

    def _is_hopeless(self, error: BaseException, failures: int) -> bool:
        """Say whether the model cannot be loaded even once."""
        if not self._intake.is_open:
            return True
        trouble = error if isinstance(error, LoadFailed) else LoadFailed(f"{error!r}")
        if self.has_tried.is_set():
            logger.error("The model of a new worker process is not loaded: %s", trouble)
            self._intake.put_back(())
            if failures >= _TRIES:
                self._crew.despair(self, trouble)
            return False
        self.trouble = trouble
        self._crew.give_up(trouble)
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
        slot = self._intake.slot(_ROOM)
        process.when_ended(partial(self._intake.retire, slot))
        is_asked = False
        while (requests := self._intake.take(slot)) is not None:
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
        self._intake.done(slot, requests)
        if not bad:  # all at once were too much, or somebody is fickle
            break_off(self._intake, requests, PicklingError("not all at once"), "the request")
            return None
        self._intake.put_back(good)
        error = ModelError("the request cannot be pickled for its way to a worker process")
        fail(bad, error, self._intake.desk)
        self._intake.through(len(requests))
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
            self._intake.done(slot, requests)
            break_off(self._intake, requests, error, "the model")
            return
        if broken is not None:
            logger.error("A worker process is replaced, since its device is broken: %s", broken)
            self._intake.retire(slot)
        self._intake.done(slot, requests)
        if outputs:
            give(self._intake, requests, outputs)
        else:
            lose(self._intake, [(), requests])

    def _not_run(self, slot: Slot, requests: Requests) -> None:
        """Give back a batch that did not get as far as the process."""
        self._intake.retire(slot)
        self._intake.done(slot, requests)
        stand_first(self._intake, requests)

    def _lost(self, slot: Slot) -> None:
        had = self._intake.recall(slot)
        if had:
            logger.error("A worker process died under %d requests", len(had[0]))
        lose(self._intake, had)


def _pause(times: int) -> float:
    """Return how long to wait after something has gone wrong so many times in a row."""
    return min(_FIRST_PAUSE * 2.0 ** min(times - 1, 9), _LONGEST_PAUSE)
