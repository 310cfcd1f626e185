"""
Pauses tasks, and drains a worker.

Rule 1: running batches end as usual; waiting requests of a paused task go back to the broker.
Rule 2: a broker queue all of whose tasks are paused is not consumed, so that other workers
        get its messages.
Rule 3: if a broker queue has other tasks, too, the worker keeps messages of paused ones, up
        to the prefetch that they would have.  A broker without such a limit would fill the
        worker with them, so the command is refused.
Rule 4: nothing is given back to a queue that is still consumed: it would return at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache, partial
from typing import Any

from celery_batch.compat.kombu import returns_here
from celery_batch.errors import ConfigurationError
from celery_batch.worker.dispatch.batch_job import is_revoked
from celery_batch.worker.scheduling.routing import queue_of
from celery_batch.worker.scheduling.scheduler import Scheduler
from celery_batch.worker.scheduling.task_queue import TaskQueue

__all__ = ["PauseControl"]

#: Seconds between checks for requests of paused tasks that can be given back, or have expired.
_CHECK_INTERVAL = 1.0


class PauseControl:
    """Pauses the tasks of one worker."""

    def __init__(self, consumer: Any, scheduler: Scheduler) -> None:
        self._consumer = consumer
        self._app = consumer.app
        self._scheduler = scheduler
        #: The broker queues that are not consumed for now.
        self._cancelled: set[str] = set()
        self.is_drained = False

    def open(self) -> None:
        """Go on with a new connection, whose timers are new."""
        self._consumer.timer.call_repeatedly(_CHECK_INTERVAL, self._check)

    def pause(self, task_queues: list[TaskQueue]) -> None:
        """Stop taking messages of some tasks, and give back waiting requests."""
        paused = {task_queue.task.name for task_queue in [*task_queues, *self._paused()]}
        queues = self._queues_of(task_queues) & set(self._consumed())
        shared = {
            queue: [name for name in self._tasks_of(queue) if name not in paused]
            for queue in sorted(queues)
        }
        for queue, others in shared.items():
            self._require_separation(queue, others)
        for task_queue in task_queues:
            task_queue.pause(self)
        self._cancel(queue for queue, others in shared.items() if not others)

    def drain(self) -> None:
        """Stop taking any messages, and give back waiting requests."""
        self.is_drained = True
        for task_queue in self._scheduler:
            task_queue.pause(self)
        self._cancel(self._consumed())

    def resume(self, task_queues: list[TaskQueue]) -> None:
        """Take messages of some tasks again, unless their queues have others that are paused."""
        if self.is_drained:
            raise ConfigurationError(
                "this worker is drained; batch_resume without a task lets it take everything again"
            )
        still_paused = {each.task.name for each in self._paused() if each not in task_queues}
        queues = self._queues_of(task_queues) & self._cancelled
        for queue in sorted(queues):
            self._require_separation(
                queue, [name for name in self._tasks_of(queue) if name in still_paused]
            )
        self._resume(queues, task_queues)

    def resume_all(self) -> None:
        """Take messages of all tasks again, as before the first pause or drain."""
        self.is_drained = False
        self._resume(self._cancelled, self._paused())

    def _resume(self, queues: Iterable[str], task_queues: Iterable[TaskQueue]) -> None:
        for task_queue in task_queues:
            self._scheduler.resume(task_queue, self)
        for queue in sorted(queues):
            self._consumer.add_task_queue(queue)
            self._cancelled.discard(queue)

    def _cancel(self, queues: Iterable[str]) -> None:
        queues = list(queues)
        self._cancelled.update(queues)
        for queue in queues:  # all of them first, as the broker may fail below
            self._app.amqp.queues.deselect(queue)
        for queue in queues:
            self._consumer.cancel_task_queue(queue)
        self._check()

    def _check(self) -> None:
        """Give back the requests that have come since, and drop expired and revoked ones."""
        for task_queue in self._paused():
            task_queue.take_set_aside(is_revoked)  # their ends are announced
            self._give_back(task_queue)

    def _give_back(self, task_queue: TaskQueue) -> None:
        # Cached, as it may ask Redis.
        returns = cache(partial(returns_here, self._consumer.task_consumer))

        def can_give_back(request: Any) -> bool:
            info = request.message.delivery_info or {}
            return not returns(*map(info.get, ("exchange", "routing_key", "consumer_tag")))

        given_back = task_queue.take_set_aside(can_give_back)
        if not given_back:
            return
        try:
            self._scheduler.give_back(given_back)
        except Exception:  # the rest is tried again
            for request in given_back:
                if not request.acknowledged:
                    task_queue.set_aside(request)
            raise

    def _paused(self) -> list[TaskQueue]:
        return [task_queue for task_queue in self._scheduler if task_queue.is_paused_by(self)]

    def _consumed(self) -> list[str]:
        return list(self._app.amqp.queues.consume_from)

    def _queues_of(self, task_queues: list[TaskQueue]) -> set[str]:
        return {queue_of(self._app, task_queue.task) for task_queue in task_queues}

    def _tasks_of(self, queue: str) -> Iterator[str]:
        """Yield the tasks of a broker queue, without Celery's own, which few apps send."""
        for name, task in sorted(self._app.tasks.items()):
            if not name.startswith("celery.") and queue_of(self._app, task) == queue:
                yield name

    def _require_separation(self, queue: str, others: list[str]) -> None:
        if others and not self._scheduler.running_messages.fetches_per_task:
            raise ConfigurationError(
                f"queue {queue} also has messages of {', '.join(others)}, and this broker would"
                f" fill the worker with those of paused tasks; name these tasks as well, give"
                f" the task a queue of its own, or use batch_drain"
            )
