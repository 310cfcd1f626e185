"""
New weights for a task's model, without losing a request.

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

import logging
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from celery.worker import state

from celery_batch.config import Settings
from celery_batch.errors import BatchError, ConfigurationError, LoadFailed
from celery_batch.worker.hands import hands_for
from celery_batch.worker.lane import Lane
from celery_batch.worker.later import Later
from celery_batch.worker.loading import load_failed
from celery_batch.worker.renewing import DISCARD, IN_PLACE, LOAD, TAKE_UP

__all__ = ["ANSWER_SOON", "Reloading"]

logger = logging.getLogger(__name__)

#: Seconds.  `celery control` listens for one second unless it is told otherwise.
ANSWER_SOON = 0.5

#: Seconds between two looks at how far it is.
_LOOK = 0.05

#: The steps that wait for others to load or to finish, and for no longer than a load may take.
_Steps = Iterator[None]


class Reloading:
    """
    Has the models of one worker loaded anew, one after another.

    Args:
        consumer: Celery's consumer, its lanes on it.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._lanes = consumer.batch_lanes
        self._steps: _Steps | None = None
        self._hands: Any = None
        self._task: Any = None
        self._began = 0.0
        self._is_in_place = False
        self._later: list[Later] = []
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

    def reload(self, lane: Lane, *, in_place: bool, wait: float) -> Later:
        """
        Begin to load a model anew.

        Args:
            lane: Of its task.
            in_place: Unload the old weights first.
            wait: Seconds after which the reply comes, even if it is not done.

        Returns:
            What will be told.

        Raises:
            ConfigurationError: There is no model, or one is being loaded.
        """
        task = lane.task
        if task.model is None:
            raise ConfigurationError(
                f"{task.name}: has no Model to load anew; start the worker again"
            )
        if self._steps is not None:
            raise ConfigurationError(f"{self._task.name} is being loaded; ask batch_status")
        if isinstance(wait, bool) or not isinstance(wait, (int, float)) or wait < 0:
            raise ConfigurationError(f"wait: must be seconds as a number from 0 up, got {wait!r}")
        self._task, self._began = task, time.monotonic()
        self._hands = hands_for(self._consumer)
        self._is_in_place = in_place
        self._steps = self._in_place() if in_place else self._beside()
        later = Later(lambda: {"ok": self._so_far()}, self._began + wait)
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
        alike = [lane for lane in self._lanes if lane.task.model is self._task.model]
        for lane in alike:
            lane.pause(self)
        while any(self._is_at_work(lane) for lane in alike):
            yield
        try:
            yield from self._do(IN_PLACE)
        except Exception as error:
            raise _NothingLeft(error) from error
        for lane in alike:
            self._lanes.resume(lane, self)

    def _is_at_work(self, lane: Lane) -> bool:
        """Say whether batches of a paused lane run, or will: those whose batch broke run again."""
        return not lane.is_empty or bool(self._lanes.report()[lane.task.name]["running"])

    def _do(self, step: str) -> _Steps:
        """
        Wait until every process has done a step.

        Raises:
            LoadFailed: Some could not, or it took too long.
        """
        self._hands.begin(self._task.name, step)
        timeout = Settings.of(self._consumer.app).load_timeout
        deadline = time.monotonic() + timeout
        while (answers := self._hands.answers()) is None:
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
        self._hands.close()
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
            "processes_at_it": self._hands.at_it,
        }

    @property
    def _seconds(self) -> float:
        return round(time.monotonic() - self._began, 3)

    def _look_regularly(self) -> None:
        if self._steps is not None and self._timer is None:
            self._timer = self._consumer.timer.call_repeatedly(_LOOK, self._look)


class _NothingLeft(Exception):
    """The old weights are unloaded, and the new ones could not be loaded."""
