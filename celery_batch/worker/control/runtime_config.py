"""
Settings of a running worker that remote control changes.

A command is validated as a whole before anything changes.  The changes outlast a lost
connection, but not the worker.  Errors are `ConfigurationError` and say what would be valid.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from math import inf
from typing import Any

from celery_batch.batching.policy import DEFAULT_LINGER, BatchPolicy
from celery_batch.compat.celery import allow_delayed_replies
from celery_batch.config import (
    changeable_options,
    milliseconds_warnings,
    policy_of,
)
from celery_batch.errors import ConfigurationError
from celery_batch.formatting import did_you_mean
from celery_batch.worker.context import WorkerContext
from celery_batch.worker.control.pause import PauseControl
from celery_batch.worker.control.reload import REPLY_AFTER, ModelReload
from celery_batch.worker.control.served_tasks import ServedTasksEntry
from celery_batch.worker.scheduling.prefetch import adjust_prefetch
from celery_batch.worker.scheduling.scheduler import Scheduler
from celery_batch.worker.scheduling.task_queue import TaskQueue

__all__ = ["RuntimeConfig"]


class RuntimeConfig:
    """The commands that have changed one worker."""

    #: Stands for the value of the task's own option.
    DEFAULT = "default"

    def __init__(self, consumer: Any, scheduler: Scheduler, served_tasks: ServedTasksEntry) -> None:
        self._consumer = consumer
        self._tasks = WorkerContext.of(consumer.controller).tasks
        self._scheduler = scheduler
        self._served_tasks = served_tasks
        self._pause_control = PauseControl(consumer, scheduler)
        self._model_reload = ModelReload(consumer, scheduler)

    def open(self) -> None:
        """Go on with a new connection."""
        allow_delayed_replies(self._consumer)
        self._pause_control.open()
        self._model_reload.open()

    def report(self, name: str) -> dict[str, Any]:
        """Return a task's state and what has been changed about it, as plain data."""
        task_queue = self._task_queue(name)
        own, now = _numbers(task_queue.task), _numbers(task_queue.task, task_queue.policy)
        return {
            "warm": self._model_reload.is_warm(task_queue.task),
            "task_says": {option: own[option] for option in own if own[option] != now[option]},
            "paused": task_queue.is_paused,
            "drained": self.is_drained,
            "reload": self._model_reload.report(task_queue.task),
        }

    @property
    def is_drained(self) -> bool:
        """Whether this worker takes no messages at all."""
        return self._pause_control.is_drained

    def options(self, name: str) -> tuple[str, ...]:
        """Return which options of a task can be changed."""
        return changeable_options(self._task_queue(name).task)

    def configure(self, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Change when a task's batches leave, from the next one on; return the present values."""
        task_queue = self._task_queue(name)
        task, own = task_queue.task, _numbers(task_queue.task)
        new = {
            option: own.get(option) if value == self.DEFAULT else value
            for option, value in values.items()
        }
        policy = policy_of(task, {**_numbers(task, task_queue.policy), **new})
        notes = milliseconds_warnings(name, policy)
        if values:
            task_queue.policy = policy
            if self._tasks:
                adjust_prefetch(self._consumer, self._scheduler.policy)
            self._scheduler.dispatch()
        notes += _linger_notes(policy)
        now = {**_numbers(task, policy), "linger": policy.linger_seconds}  # as batch_status has it
        reply = {"task": name, **now, "task_says": self.report(name)["task_says"]}
        return {**reply, "notes": notes} if notes else reply

    def trace(
        self, name: str, seconds: Any, seen: Mapping[str, int] | None = None
    ) -> dict[str, Any]:
        """Return what has arrived since the numbers `seen`, and record for so many seconds."""
        task_queue = self._task_queue(name)
        if not isinstance(seconds, (int, float)) or not 0 <= seconds < inf:
            raise ConfigurationError(f"seconds: must be a number from 0 up, got {seconds!r}")
        number = None if seen is None else int(seen.get(self._consumer.hostname, 0))
        started = time.time() - time.monotonic()
        arrivals, following = task_queue.arrivals.record(seconds, number)
        arrived = [[round(started + arrived, 6), cost, rows] for arrived, cost, rows in arrivals]
        return {
            "task": name,
            "processes": task_queue.processes(),
            "arrived": arrived,
            "next": following,
        }

    def pause(self, names: Sequence[str]) -> dict[str, Any]:
        """Stop taking messages of tasks, give back waiting requests, and return their states."""
        self._pause_control.pause([self._task_queue(name) for name in names])
        return self._changed(names)

    def resume(self, names: Sequence[str]) -> dict[str, Any]:
        """Take messages of these tasks again, or of all that were paused; return their states."""
        if names:
            self._pause_control.resume([self._task_queue(name) for name in names])
        else:
            self._pause_control.resume_all()
        return self._changed(names)

    def drain(self) -> dict[str, Any]:
        """Stop taking messages, give back waiting requests, and return the tasks' states."""
        self._pause_control.drain()
        return self._changed(())

    def reload(
        self, name: str, *, in_place: bool = False, wait: float = REPLY_AFTER
    ) -> Future[dict[str, Any]]:
        """Reload the model of a task in each process; see `ModelReload.reload`."""
        return self._model_reload.reload(self._task_queue(name), in_place=in_place, wait=wait)

    def _changed(self, names: Collection[str]) -> dict[str, Any]:
        """Publish the change, and return the states of these tasks, or of all served ones."""
        self._served_tasks.refresh()
        names = names or [task.name for task in self._tasks]
        halted = "drained" if self.is_drained else "paused"
        reports = self._scheduler.report()
        return {
            each.task.name: {
                "state": halted if each.is_paused else "open",
                "waiting": reports[each.task.name]["waiting"],
                "running": reports[each.task.name]["running"],
            }
            for each in self._scheduler
            if each.task.name in names
        }

    def _task_queue(self, name: str) -> TaskQueue:
        task_queues: dict[str, TaskQueue] = {each.task.name: each for each in self._scheduler}
        if name in task_queues:
            return task_queues[name]
        known = sorted(task_queues)
        raise ConfigurationError(
            f"{name}: no batch task of this worker, which knows {', '.join(known) or 'none'}"
            f"{did_you_mean(name, known)}"
        )


def _numbers(task: Any, policy: BatchPolicy | None = None) -> dict[str, Any]:
    """Return the options of a policy that can be changed; of the task's own unless given."""
    policy = policy or policy_of(task)
    return {option: getattr(policy, option) for option in changeable_options(task)}


def _linger_notes(policy: Any) -> list[str]:
    """Return notes on why the effective `linger` differs from the option."""
    if policy.linger is None:
        usual = f"{DEFAULT_LINGER:g}, or max_wait where that is shorter, and 0 after a batch of one"
        return [f"linger: none is set, so it is {usual}"]
    if policy.linger > policy.max_wait:
        return [f"linger: {policy.linger:g} is set, but no request waits longer than max_wait"]
    return []
