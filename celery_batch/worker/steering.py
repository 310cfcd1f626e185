"""
What an operator changes about a running worker, until it is told otherwise or ends.

Rule 1: an order is checked whole before anything of it is done.
Rule 2: it holds over a lost connection, and not over the worker's end.
Rule 3: what is wrong with it is a `ConfigurationError` that says what would be right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from celery_batch.batching.policy import DEFAULT_LINGER
from celery_batch.config import OPTIONS, did_you_mean, like_milliseconds, policy_of
from celery_batch.errors import ConfigurationError
from celery_batch.worker import capacity
from celery_batch.worker.halting import Halting
from celery_batch.worker.lane import Lane
from celery_batch.worker.later import Later
from celery_batch.worker.reloading import ANSWER_SOON, Reloading

__all__ = ["DEFAULT", "Steering"]

#: In place of a value: what the task itself says.
DEFAULT = "default"


class Steering:
    """
    The orders that hold for one worker.

    Args:
        consumer: Celery's consumer, its lanes on it.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._lanes = consumer.batch_lanes
        self._halting = Halting(consumer)
        self._reloading = Reloading(consumer)

    def open(self) -> None:
        """Have the orders hold on a new connection."""
        self._halting.open()
        self._reloading.open()

    def report(self, name: str) -> dict[str, Any]:
        """
        Return what has been changed about a task, as plain data.

        Args:
            name: The task's.
        """
        lane = self._lane(name)
        own, now = _numbers(policy_of(lane.task)), _numbers(lane.policy)
        return {
            "task_says": {option: own[option] for option in own if own[option] != now[option]},
            **self.halted(name),
            "reload": self._reloading.report(lane.task),
        }

    def is_warm(self, name: str) -> bool:
        """Return whether a task's model is there to answer."""
        return self._reloading.is_warm(self._lane(name).task)

    @property
    def is_drained(self) -> bool:
        """Whether this worker takes nothing at all, by an order."""
        return self._halting.is_drained

    def halted(self, name: str) -> dict[str, bool]:
        """Return whether a task does not run here for now, by what it was told."""
        return {
            "paused": self._lane(name).kept is not None,
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
        lane = self._lane(name)
        own = _numbers(policy_of(lane.task))
        new = {
            option: own.get(option) if value == DEFAULT else value
            for option, value in values.items()
        }
        policy = policy_of(lane.task, {**_numbers(lane.policy), **new})
        notes = like_milliseconds(name, policy)
        if values:
            lane.policy = policy
            self._hold_enough(notes)
            self._lanes.pump()
        notes += _about_linger(policy)
        now = {**_numbers(policy), "linger": policy.patience}  # as batch_status has it
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
        self._halting.pause([self._lane(name) for name in names])
        self._consumer.batch_presence.refresh()
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
            self._halting.resume([self._lane(name) for name in names])
        else:
            self._halting.resume_all()
        self._consumer.batch_presence.refresh()
        return {lane.task.name: self._standing(lane.task.name) for lane in self._told_of(names)}

    def drain(self) -> dict[str, Any]:
        """Take nothing more, give back what waits, and return what still runs, by task."""
        self._halting.drain()
        self._consumer.batch_presence.refresh()
        return {lane.task.name: self._standing(lane.task.name) for lane in self._told_of(())}

    def reload(self, name: str, *, in_place: bool = False, wait: float = ANSWER_SOON) -> Later:
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
        return self._reloading.reload(self._lane(name), in_place=in_place, wait=wait)

    def _told_of(self, names: Sequence[str]) -> list[Lane]:
        served = [task.name for task in self._consumer.controller.batch_tasks]
        return [lane for lane in self._lanes if lane.task.name in (names or served)]

    def _standing(self, name: str) -> dict[str, Any]:
        report = self._lanes.report()[name]
        state = "drained" if self._halting.is_drained else "paused"
        return {
            "state": state if self._lane(name).kept is not None else "open",
            "waiting": report["waiting"],
            "running": report["running"],
        }

    def _hold_enough(self, notes: list[str]) -> None:
        consumer = self._consumer
        if not consumer.controller.batch_tasks:
            return
        before, now = capacity.hold_enough(consumer)
        if now > before and not consumer.qos_global and _is_amqp(consumer):
            notes.append(
                f"queues of this kind keep their prefetch while they are consumed: the worker"
                f" holds {before} messages at most until it connects again"
            )

    def _lane(self, name: str) -> Lane:
        lanes: dict[str, Lane] = {lane.task.name: lane for lane in self._lanes}
        if name in lanes:
            return lanes[name]
        known = sorted(lanes)
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
