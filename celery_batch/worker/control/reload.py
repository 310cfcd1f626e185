"""
Reloads a task's model without losing a request.

Rule 1: new weights are loaded beside the old ones, which are used meanwhile.  When all
        processes have them, and not before, each swaps them in at its next batch.
Rule 2: if one process cannot load them, none uses them.
Rule 3: ``in_place`` is for memory that holds one set only: the task's requests wait in the
        worker while the old weights are unloaded and the new ones loaded.  If that fails
        there is no model, and the worker stops, for its supervisor to restart it.
Rule 4: the reload is done when no batch runs on the old weights any more.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Any

from celery.worker import state

from celery_batch.compat.billiard import pool_processes
from celery_batch.config import Settings
from celery_batch.errors import BatchError, ConfigurationError, LoadFailed
from celery_batch.worker.context import WorkerContext
from celery_batch.worker.executor.loader import (
    DISCARD,
    IN_PLACE,
    LOAD,
    SWAP,
    address_of,
    load_failed,
    run_step,
)
from celery_batch.worker.executor.warmup import WarmUp
from celery_batch.worker.scheduling.scheduler import Scheduler
from celery_batch.worker.scheduling.task_queue import TaskQueue

__all__ = ["REPLY_AFTER", "ModelReload"]

logger = logging.getLogger(__name__)

#: Seconds.  `celery control` listens for one second by default.
REPLY_AFTER = 0.5

#: Seconds between checks of a running step.
_POLL_INTERVAL = 0.05

#: Yields how many processes have not answered, for as long as that may change.
_Steps = Iterator[int]

#: The error of a step in each process; None where there was none.
_Answers = dict[int, str | None]

#: Numbers of steps; the answer to one that took too long may come during the next.
_numbers = count(1)


def _run_in_pool(
    pool: Any, warm_up: WarmUp, task_name: str, step: str, answers: _Answers
) -> _Steps:
    """Run a reload step in all present processes of a pool, whose answers are added."""
    folder = warm_up.folder
    address = folder / "reload"
    number, fields = next(_numbers), {"task": task_name, "step": step, "reply_to": str(address)}
    message = json.dumps({**fields, "number": number}).encode()
    asked = _pids(pool)
    unsent, replacements = set(asked), set[int]()
    address.unlink(missing_ok=True)  # of an earlier step
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        try:
            channel.bind(str(address))
        except FileNotFoundError:
            raise LoadFailed(
                f"the folder {folder} was removed, through which pool processes are reached: have"
                " no cleaner remove it, or set TMPDIR to another folder, and restart the worker"
            ) from None
        channel.settimeout(0)
        while True:
            for pid in list(unsent):
                with suppress(OSError):  # a new process that still loads will listen soon
                    channel.sendto(message, address_of(pid, address))
                    unsent.discard(pid)
            with suppress(BlockingIOError):
                while True:
                    answer = json.loads(channel.recv(1 << 16))
                    if answer["number"] == number:
                        answers[answer["pid"]] = answer["error"]
            # A process that replaces another loads the new weights at its start.
            present = _pids(pool)
            replacements = (replacements | (present & warm_up.warm) - asked) & present
            asked_present = asked & present
            missing = pool.num_processes - len(asked_present) - len(replacements)
            pending = len(asked_present - answers.keys()) + max(missing, 0)
            if not pending:
                return
            yield pending


def _pids(pool: Any) -> set[int]:
    return {each.pid for each in pool_processes(pool) if each.exitcode is None}


def _run_on_thread(app: Any, task_name: str, step: str, answers: _Answers) -> _Steps:
    """Run a reload step on a thread, where batches run in the worker's main process."""

    def work() -> None:
        answers[os.getpid()] = run_step(app, task_name, step)

    thread = threading.Thread(target=work, name="batch-reload", daemon=True)
    thread.start()
    while thread.is_alive():
        yield 1


class ModelReload:
    """Reloads the models of one worker, one at a time."""

    def __init__(self, consumer: Any, scheduler: Scheduler) -> None:
        self._consumer = consumer
        self._scheduler = scheduler
        self._steps: _Steps | None = None
        self._run: Callable[[str, str, _Answers], _Steps] = partial(_run_on_thread, consumer.app)
        self._pending = 0
        self._task: Any = None
        self._began = 0.0
        self._is_in_place = False
        self._reply: Future[dict[str, Any]] = Future()
        self._reply_at = 0.0
        self._timer: Any = None
        #: The last reload of each model.
        self._last: dict[type, dict[str, Any]] = {}

    def open(self) -> None:
        """Go on with a new connection, whose timers are new."""
        self._timer = None
        if self._steps is not None:
            self._start_timer()

    def report(self, task: Any) -> dict[str, Any] | None:
        """Return the present or last reload of a task's model; None if there was none."""
        if self._steps is not None and self._task.model is task.model:
            return self._progress()
        return self._last.get(task.model)

    def is_warm(self, task: Any) -> bool:
        """Return whether a task's model is loaded; it is not during a reload in place."""
        return not (self._is_in_place and self._task.model is task.model)

    def reload(
        self, task_queue: TaskQueue, *, in_place: bool, wait: float
    ) -> Future[dict[str, Any]]:
        """Start to reload a model; return the reply, sent after `wait` seconds at the latest."""
        task = task_queue.task
        if task.model is None:
            raise ConfigurationError(f"{task.name}: has no Model to reload; restart the worker")
        if self._steps is not None:
            raise ConfigurationError(f"{self._task.name} is being loaded; ask batch_status")
        if isinstance(wait, bool) or not isinstance(wait, (int, float)) or wait < 0:
            raise ConfigurationError(f"wait: must be seconds as a number from 0 up, got {wait!r}")
        self._task, self._began = task, time.monotonic()
        warm_up = WorkerContext.of(self._consumer.controller).warm_up
        if warm_up is not None:
            self._run = partial(_run_in_pool, self._consumer.pool, warm_up)
        self._is_in_place = in_place
        self._steps = self._in_place() if in_place else self._beside()
        self._reply, self._reply_at = Future(), self._began + wait
        self._go_on()
        self._start_timer()
        return self._reply

    def _beside(self) -> _Steps:
        try:
            yield from self._do(LOAD)
        except BatchError as error:
            with suppress(BatchError):
                yield from self._do(DISCARD)
            raise LoadFailed(f"{error}; the old weights stay in use") from error
        try:
            yield from self._do(SWAP)
        except BatchError as error:
            raise LoadFailed(f"{error}; new batches use the new weights") from error

    def _in_place(self) -> _Steps:
        task_queues = [each for each in self._scheduler if each.task.model is self._task.model]
        for task_queue in task_queues:
            task_queue.pause(self)
        while any(map(self._has_batches, task_queues)):
            yield 0
        try:
            yield from self._do(IN_PLACE)
        except Exception as error:
            raise _NoWeights(error) from error
        for task_queue in task_queues:
            self._scheduler.resume(task_queue, self)

    def _has_batches(self, task_queue: TaskQueue) -> bool:
        """Return whether batches of a paused task queue run, or will run again."""
        return not task_queue.is_empty or bool(
            self._scheduler.report()[task_queue.task.name]["running"]
        )

    def _do(self, step: str) -> _Steps:
        """Wait until all processes have done a step; raise `LoadFailed` if one has not."""
        timeout = Settings.of(self._consumer.app).load_timeout
        deadline = time.monotonic() + timeout
        answers: _Answers = {}
        for pending in self._run(self._task.name, step, answers):
            if time.monotonic() > deadline:
                raise LoadFailed(f"not done after {timeout:g} s ({step})")
            yield pending
        errors = {pid: error for pid, error in answers.items() if error}
        for pid, error in errors.items():
            raise LoadFailed(
                f"{len(errors)} of {len(answers)} processes failed; process {pid}: {error}"
            )

    def _go_on(self) -> None:
        """Check the present step, and reply if it is time."""
        if self._steps is None:
            return
        try:
            self._pending = next(self._steps)
        except StopIteration:
            logger.info("%s uses new weights", self._task.name)
            self._end({"state": "done"})
        except _NoWeights as error:
            self._end({"state": "failed", "error": f"{error}; the worker stops"})
            logger.critical("This worker has lost the weights of %s: %s", self._task.name, error)
            load_failed.send(sender=None, error=str(error))
            state.should_stop = os.EX_SOFTWARE
        except Exception as error:
            is_unexpected = not isinstance(error, BatchError)
            logger.warning(
                "Reloading %s failed: %s", self._task.name, error, exc_info=is_unexpected
            )
            self._end({"state": "failed", "error": str(error)})
        else:
            if time.monotonic() >= self._reply_at and not self._reply.done():
                self._reply.set_result({"ok": self._progress()})

    def _end(self, how: dict[str, Any]) -> None:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        found = {"task": self._task.name, **how, "seconds": self._seconds, "at": at}
        self._last[self._task.model] = found  # before the steps end: metrics read it on a thread
        self._steps = None
        self._timer, timer = None, self._timer
        if timer is not None:
            timer.cancel()
        # If that has failed there is no model, and the worker stops.
        self._is_in_place = self._is_in_place and how["state"] == "failed"
        if not self._reply.done():
            error = how.get("error")
            self._reply.set_result(
                {"ok": found} if error is None else {"error": f"{self._task.name}: {error}"}
            )

    def _progress(self) -> dict[str, Any]:
        return {
            "task": self._task.name,
            "state": "loading",
            "seconds": self._seconds,
            "processes_loading": self._pending,
        }

    @property
    def _seconds(self) -> float:
        return round(time.monotonic() - self._began, 3)

    def _start_timer(self) -> None:
        if self._steps is not None and self._timer is None:
            self._timer = self._consumer.timer.call_repeatedly(_POLL_INTERVAL, self._go_on)


class _NoWeights(Exception):
    """The old weights are unloaded, and the new ones could not be loaded."""
