"""

Settings of a running worker that remote control has changed.

Rule 1: an order is checked whole before anything of it is done.
Rule 2: it holds over a lost connection, and not over the worker's end.
Rule 3: what is wrong with it is a `ConfigurationError` that says what would be right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from celery_batch.batching.policy import DEFAULT_LINGER
from celery_batch.config import OPTIONS, did_you_mean, milliseconds_warnings, policy_of
from celery_batch.errors import ConfigurationError
from celery_batch.worker.context import WorkerContext
from celery_batch.worker.control.delayed_replies import DelayedReply
from celery_batch.worker.control.pause import PauseControl
from celery_batch.worker.control.reload import ANSWER_SOON, ModelReload
from celery_batch.worker.control.served_tasks import ServedTasksEntry
from celery_batch.worker.scheduling.prefetch import hold_enough
from celery_batch.worker.scheduling.scheduler import Scheduler
from celery_batch.worker.scheduling.task_queue import TaskQueue

__all__ = ["DEFAULT", "RuntimeConfig"]

#: In place of a value: what the task itself says.
DEFAULT = "default"


class RuntimeConfig:
    """
    The orders that hold for one worker.

    Args:
        consumer: Celery's consumer.
        scheduler: Its scheduler.
        served_tasks: What clients are told about its tasks.
    """

    def __init__(self, consumer: Any, scheduler: Scheduler, served_tasks: ServedTasksEntry) -> None:
        self._consumer = consumer
        self._tasks = WorkerContext.of(consumer.controller).tasks
        self._scheduler = scheduler
        self._served_tasks = served_tasks
        self._pause_control = PauseControl(consumer, scheduler)
        self._reloading = ModelReload(consumer, scheduler)

    def open(self) -> None:
        """Have the orders hold on a new connection."""
        self._pause_control.open()
        self._reloading.open()

    def report(self, name: str) -> dict[str, Any]:
        """
        Return what has been changed about a task, as plain data.

        Args:
            name: The task's.
        """
        task_queue = self._task_queue(name)
        own, now = _numbers(policy_of(task_queue.task)), _numbers(task_queue.policy)
        return {
            "task_says": {option: own[option] for option in own if own[option] != now[option]},
            **self.halted(name),
            "reload": self._reloading.report(task_queue.task),
        }

    def is_warm(self, name: str) -> bool:
        """Return whether a task's model is there to answer."""
        return self._reloading.is_warm(self._task_queue(name).task)

    @property
    def is_drained(self) -> bool:
        """Whether this worker takes nothing at all, by an order."""
        return self._pause_control.is_drained

    def halted(self, name: str) -> dict[str, bool]:
        """Return whether a task does not run here for now, by what it was told."""
        return {
            "paused": self._task_queue(name).kept is not None,
            "drained": self.is_drained,
        }

    def configure(self, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """
        Change when a task's batches leave, from the next one on.

        Args:
            name: The task's.
            values: By option; `DEFAULT` for what the task says.  None at all changes nothing.

        Returns:
            What holds now, and what the task says where that is another thing.

        Raises:
            ConfigurationError: The task, an option or a value is wrong; nothing has changed.
        """
        task_queue = self._task_queue(name)
        own = _numbers(policy_of(task_queue.task))
        new = {
            option: own.get(option) if value == DEFAULT else value
            for option, value in values.items()
        }
        policy = policy_of(task_queue.task, {**_numbers(task_queue.policy), **new})
        notes = milliseconds_warnings(name, policy)
        if values:
            task_queue.policy = policy
            self._hold_enough(notes)
            self._scheduler.pump()
        notes += _about_linger(policy)
        now = {**_numbers(policy), "linger": policy.linger_seconds}  # as batch_status has it
        told = {"task": name, **now, "task_says": self.report(name)["task_says"]}
        return {**told, "notes": notes} if notes else told

    def pause(self, names: Sequence[str]) -> dict[str, Any]:
        """
        Take no more of some tasks, and give back what waits of them.

        Args:
            names: The tasks'.

        Returns:
            What is so now, by task.

        Raises:
            ConfigurationError: A name is wrong, or the broker cannot do it; nothing has changed.
        """
        self._pause_control.pause([self._task_queue(name) for name in names])
        self._served_tasks.refresh()
        return {name: self._standing(name) for name in names}

    def resume(self, names: Sequence[str]) -> dict[str, Any]:
        """
        Take tasks' messages again.

        Args:
            names: The tasks'; none for all that were paused, and after a drain.

        Returns:
            What is so now, by task.

        Raises:
            ConfigurationError: A name is wrong, or the broker cannot do it; nothing has changed.
        """
        if names:
            self._pause_control.resume([self._task_queue(name) for name in names])
        else:
            self._pause_control.resume_all()
        self._served_tasks.refresh()
        return {
            task_queue.task.name: self._standing(task_queue.task.name)
            for task_queue in self._told_of(names)
        }

    def drain(self) -> dict[str, Any]:
        """Take nothing more, give back what waits, and return what still runs, by task."""
        self._pause_control.drain()
        self._served_tasks.refresh()
        return {
            task_queue.task.name: self._standing(task_queue.task.name)
            for task_queue in self._told_of(())
        }

    def reload(
        self, name: str, *, in_place: bool = False, wait: float = ANSWER_SOON
    ) -> DelayedReply:
        """
        Load the model of a task anew, in each process that has it.

        Args:
            name: The task's.
            in_place: Unload the old weights first, while no batch of them runs.
            wait: Seconds after which the reply comes, even if it is not done.

        Returns:
            What will be told.

        Raises:
            ConfigurationError: The task has no model, or one is being loaded.
        """
        return self._reloading.reload(self._task_queue(name), in_place=in_place, wait=wait)

    def _told_of(self, names: Sequence[str]) -> list[TaskQueue]:
        served = [task.name for task in self._tasks]
        return [
            task_queue
            for task_queue in self._scheduler
            if task_queue.task.name in (names or served)
        ]

    def _standing(self, name: str) -> dict[str, Any]:
        report = self._scheduler.report()[name]
        state = "drained" if self._pause_control.is_drained else "paused"
        return {
            "state": state if self._task_queue(name).kept is not None else "open",
            "waiting": report["waiting"],
            "running": report["running"],
        }

    def _hold_enough(self, notes: list[str]) -> None:
        consumer = self._consumer
        if not self._tasks:
            return
        before, now = hold_enough(consumer, self._scheduler)
        if now > before and not consumer.qos_global and _is_amqp(consumer):
            notes.append(
                f"queues of this kind keep their prefetch while they are consumed: the worker"
                f" holds {before} messages at most until it connects again"
            )

    def _task_queue(self, name: str) -> TaskQueue:
        scheduler: dict[str, TaskQueue] = {
            task_queue.task.name: task_queue for task_queue in self._scheduler
        }
        if name in scheduler:
            return scheduler[name]
        known = sorted(scheduler)
        raise ConfigurationError(
            f"{name}: no batch task of this worker, which knows {', '.join(known) or 'none'}"
            f"{did_you_mean(name, known)}"
        )


def _numbers(policy: Any) -> dict[str, Any]:
    return {option: getattr(policy, option) for option in OPTIONS}


def _about_linger(policy: Any) -> list[str]:
    """Say where `linger` is another number than was set, and why."""
    if policy.linger is None:
        usual = f"{DEFAULT_LINGER:g}, or max_wait where that is shorter, and 0 after a batch of one"
        return [f"linger: none is set, so it is {usual}"]
    if policy.linger > policy.max_wait:
        return [f"linger: {policy.linger:g} is set, but nobody waits longer than max_wait"]
    return []


def _is_amqp(consumer: Any) -> bool:
    return bool(consumer.connection.transport.driver_type == "amqp")
