"""Reloads a task's model without losing a request.

Rule 1: new weights are loaded beside the old ones, which answer meanwhile; when all
        processes have them, and not before, each answers with the new ones from its next
        batch on.
Rule 2: if one cannot load them, none takes them up.
Rule 3: who has memory for one set only says so: the task's requests then wait in the
        worker while the old weights are unloaded and the new ones loaded.  If that goes
        wrong there is nothing to answer with, and the worker stops, for its supervisor.
Rule 4: it has gone well when no batch runs on the old weights any more.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from celery.worker import state

from celery_batch.config import Settings
from celery_batch.errors import BatchError, ConfigurationError, LoadFailed
from celery_batch.worker.context import WorkerContext
from celery_batch.worker.control.delayed_replies import DelayedReply
from celery_batch.worker.executor.loader import (
    DISCARD,
    IN_PLACE,
    LOAD,
    TAKE_UP,
    address_of,
    carry_out,
    load_failed,
)
from celery_batch.worker.scheduling.scheduler import Scheduler
from celery_batch.worker.scheduling.task_queue import TaskQueue

__all__ = [
    "ANSWER_SOON",
    "ModelReload",
    "PoolLoader",
    "ThreadLoader",
    "loader_for",
]


#: What became of a step, by process: what went wrong, or None.
Answers = dict[int, str | None]


#: Of steps; one that took too long may be answered while the next order is carried out.
_numbers = count(1)


class PoolLoader:
    """
    The pool processes, each of which has the model.

    Args:
        pool: Celery's prefork pool.
        folder: Where the sockets are.
    """

    def __init__(self, pool: Any, folder: Path) -> None:
        self._pool = pool
        self._address = str(folder / "orders")
        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._channel.bind(self._address)
        self._channel.settimeout(0)
        self._order: dict[str, Any] = {}
        self._unsent: set[int] = set()
        self._silent: set[int] = set()
        self._answers: Answers = {}

    def begin(self, task_name: str, step: str) -> None:
        """Have every process that there is now do one step."""
        to = {"number": next(_numbers), "answer_to": self._address}
        self._order = {"task": task_name, "step": step, **to}
        self._silent, self._answers = self._pids(), {}
        self._unsent = set(self._silent)

    def answers(self) -> Answers | None:
        """Return what became of the step; None while some process is at it."""
        self._send()
        self._receive()
        there = self._pids()
        # Who is gone has been replaced, and who came in its place has loaded what there is now.
        self._silent &= there
        return None if self._silent else self._answers

    @property
    def at_it(self) -> int:
        """How many processes have not answered."""
        return len(self._silent)

    def close(self) -> None:
        """Let go of the socket."""
        self._channel.close()
        with suppress(OSError):
            Path(self._address).unlink()

    def _pids(self) -> set[int]:
        processes = list(self._pool._pool._pool)  # noqa: SLF001 (billiard has no public list)
        return {process.pid for process in processes if process.exitcode is None}

    def _send(self) -> None:
        for pid in list(self._unsent):
            with suppress(OSError):  # one that is loading as any new process listens before long
                order = json.dumps(self._order).encode()
                self._channel.sendto(order, address_of(pid, self._address))
                self._unsent.discard(pid)

    def _receive(self) -> None:
        with suppress(BlockingIOError):
            while True:
                answer = json.loads(self._channel.recv(1 << 16))
                if answer["number"] == self._order["number"]:
                    self._answers[answer["pid"]] = answer["error"]
                    self._silent.discard(answer["pid"])


class ThreadLoader:
    """
    A thread beside the batches, where these run in the worker's main process.

    Args:
        app: The Celery app.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._thread: threading.Thread | None = None
        self._error: str | None = None

    def begin(self, task_name: str, step: str) -> None:
        """Do one step."""
        self._error = None

        def work() -> None:
            self._error = carry_out(self._app, task_name, step)

        self._thread = threading.Thread(target=work, name="batch-orders", daemon=True)
        self._thread.start()

    def answers(self) -> Answers | None:
        """Return what became of the step; None while it is done."""
        return None if self.at_it else {os.getpid(): self._error}

    @property
    def at_it(self) -> int:
        """How many processes have not answered."""
        return int(self._thread is not None and self._thread.is_alive())

    def close(self) -> None:
        """Nothing is to be let go of."""


def loader_for(consumer: Any) -> PoolLoader | ThreadLoader:
    """
    Return who loads models anew for a consumer.

    Args:
        consumer: Celery's.
    """
    warm_up = WorkerContext.of(consumer.controller).warm_up
    return (
        PoolLoader(consumer.pool, warm_up.folder)
        if warm_up is not None
        else ThreadLoader(consumer.app)
    )


logger = logging.getLogger(__name__)


#: Seconds.  `celery control` listens for one second unless it is told otherwise.
ANSWER_SOON = 0.5


#: Seconds between two looks at how far it is.
_LOOK = 0.05


#: The steps that wait for others to load or to finish, and for no longer than a load may take.
_Steps = Iterator[None]


class ModelReload:
    """
    Has the models of one worker loaded anew, one after another.

    Args:
        consumer: Celery's consumer.
        scheduler: Its scheduler.
    """

    def __init__(self, consumer: Any, scheduler: Scheduler) -> None:
        self._consumer = consumer
        self._scheduler = scheduler
        self._steps: _Steps | None = None
        self._loader: Any = None
        self._task: Any = None
        self._began = 0.0
        self._is_in_place = False
        self._later: list[DelayedReply] = []
        self._timer: Any = None
        #: How it went the last time, by model.
        self._last: dict[type, dict[str, Any]] = {}

    def open(self) -> None:
        """Go on with a new connection, whose timers are new."""
        self._timer = None
        if self._steps is not None:
            self._look_regularly()

    def report(self, task: Any) -> dict[str, Any] | None:
        """
        Return how a task's model is, or was last, loaded anew; None if that has not been asked.

        Args:
            task: The batch task.
        """
        if self._steps is not None and self._task.model is task.model:
            return self._so_far()
        return self._last.get(task.model)

    def is_warm(self, task: Any) -> bool:
        """
        Say whether a task's model answers: not while its only weights are loaded in place.

        Args:
            task: The batch task.
        """
        return not (self._is_in_place and self._task.model is task.model)

    def reload(self, task_queue: TaskQueue, *, in_place: bool, wait: float) -> DelayedReply:
        """
        Begin to load a model anew.

        Args:
            task_queue: Of its task.
            in_place: Unload the old weights first.
            wait: Seconds after which the reply comes, even if it is not done.

        Returns:
            What will be told.

        Raises:
            ConfigurationError: There is no model, or one is being loaded.
        """
        task = task_queue.task
        if task.model is None:
            raise ConfigurationError(
                f"{task.name}: has no Model to load anew; start the worker again"
            )
        if self._steps is not None:
            raise ConfigurationError(f"{self._task.name} is being loaded; ask batch_status")
        if isinstance(wait, bool) or not isinstance(wait, (int, float)) or wait < 0:
            raise ConfigurationError(f"wait: must be seconds as a number from 0 up, got {wait!r}")
        self._task, self._began = task, time.monotonic()
        self._loader = loader_for(self._consumer)
        self._is_in_place = in_place
        self._steps = self._in_place() if in_place else self._beside()
        later = DelayedReply(lambda: {"ok": self._so_far()}, self._began + wait)
        self._later.append(later)
        self._look()
        self._look_regularly()
        return later

    def _beside(self) -> _Steps:
        try:
            yield from self._do(LOAD)
        except BatchError as error:
            with suppress(BatchError):
                yield from self._do(DISCARD)
            raise LoadFailed(f"{error}; the old weights go on answering") from error
        try:
            yield from self._do(TAKE_UP)
        except BatchError as error:
            raise LoadFailed(f"{error}; batches that begin now have the new weights") from error

    def _in_place(self) -> _Steps:
        alike = [
            task_queue
            for task_queue in self._scheduler
            if task_queue.task.model is self._task.model
        ]
        for task_queue in alike:
            task_queue.pause(self)
        while any(self._is_at_work(task_queue) for task_queue in alike):
            yield
        try:
            yield from self._do(IN_PLACE)
        except Exception as error:
            raise _NothingLeft(error) from error
        for task_queue in alike:
            self._scheduler.resume(task_queue, self)

    def _is_at_work(self, task_queue: TaskQueue) -> bool:
        """Say whether batches of a paused lane run, or will: those whose batch broke run again."""
        return not task_queue.is_empty or bool(
            self._scheduler.report()[task_queue.task.name]["running"]
        )

    def _do(self, step: str) -> _Steps:
        """
        Wait until every process has done a step.

        Raises:
            LoadFailed: Some could not, or it took too long.
        """
        self._loader.begin(self._task.name, step)
        timeout = Settings.of(self._consumer.app).load_timeout
        deadline = time.monotonic() + timeout
        while (answers := self._loader.answers()) is None:
            if time.monotonic() > deadline:
                raise LoadFailed(f"not done after {timeout:g} s ({step})")
            yield
        wrong = {pid: error for pid, error in answers.items() if error}
        for pid, error in wrong.items():
            raise LoadFailed(
                f"{len(wrong)} of {len(answers)} processes could not; process {pid}: {error}"
            )

    def _look(self) -> None:
        """Go a step on if it is time, and tell who has waited long enough."""
        if self._steps is None:
            return
        try:
            next(self._steps)
        except StopIteration:
            logger.info("%s answers with new weights", self._task.name)
            self._end({"state": "done"})
        except _NothingLeft as error:
            self._end({"state": "failed", "error": f"{error}; the worker stops"})
            logger.critical("This worker has lost the weights of %s: %s", self._task.name, error)
            load_failed.send(sender=None, error=str(error))
            state.should_stop = os.EX_SOFTWARE
        except Exception as error:
            is_odd = not isinstance(error, BatchError)
            logger.warning("Reloading %s failed: %s", self._task.name, error, exc_info=is_odd)
            self._end({"state": "failed", "error": str(error)})
        else:
            for later in self._later:
                if time.monotonic() >= later.until:
                    later.give(later.so_far())

    def _end(self, how: dict[str, Any]) -> None:
        self._steps = None
        self._loader.close()
        self._timer, timer = None, self._timer
        if timer is not None:
            timer.cancel()
        # Where that has failed there is nothing to answer with, and the worker stops.
        self._is_in_place = self._is_in_place and how["state"] == "failed"
        at = datetime.now(UTC).isoformat(timespec="seconds")
        found = {"task": self._task.name, **how, "seconds": self._seconds, "at": at}
        self._last[self._task.model] = found
        later, self._later = self._later, []
        for each in later:
            failed = f"{self._task.name}: {how['error']}" if "error" in how else ""
            each.give({"error": failed} if failed else {"ok": found})

    def _so_far(self) -> dict[str, Any]:
        if self._steps is None:
            return self._last[self._task.model]
        return {
            "task": self._task.name,
            "state": "loading",
            "seconds": self._seconds,
            "processes_at_it": self._loader.at_it,
        }

    @property
    def _seconds(self) -> float:
        return round(time.monotonic() - self._began, 3)

    def _look_regularly(self) -> None:
        if self._steps is not None and self._timer is None:
            self._timer = self._consumer.timer.call_repeatedly(_LOOK, self._look)


class _NothingLeft(Exception):
    """The old weights are unloaded, and the new ones could not be loaded."""
