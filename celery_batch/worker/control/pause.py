"""

Pauses tasks, and drains a worker.

Rule 1: what runs, runs on to its end; what waits of a paused task goes back to the broker.
Rule 2: a queue whose every task is paused is not consumed, so that others have its messages.
Rule 3: where a queue brings other tasks, too, those that are paused are kept, as many as
        the worker would hold if they ran; a broker that cannot be asked for so few
        would fill the worker with them, and the order is refused.
Rule 4: nothing is given back to a queue that is still consumed: it would come again at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from celery_batch.errors import ConfigurationError
from celery_batch.worker.scheduling.routing import queue_of
from celery_batch.worker.scheduling.scheduler import Scheduler
from celery_batch.worker.scheduling.task_queue import PausedRequests, TaskQueue

__all__ = ["PauseControl"]

#: Seconds between two looks at what has come to paused tasks by other ways, and has expired.
_LOOK = 1.0


class PauseControl:
    """
    What one worker takes no more.

    Args:
        consumer: Celery's consumer.
        scheduler: Its scheduler.
    """

    def __init__(self, consumer: Any, scheduler: Scheduler) -> None:
        self._consumer = consumer
        self._app = consumer.app
        self._scheduler = scheduler
        #: The queues that were consumed, and are not for now.
        self._left: set[str] = set()
        self._timer: Any = None
        self.is_drained = False

    def open(self) -> None:
        """Look after what is paused on a new connection, whose timers are new."""
        self._timer = None
        self._look_regularly()

    def pause(self, scheduler: list[TaskQueue]) -> None:
        """
        Take no more of some tasks, and give back what waits.

        Args:
            scheduler: Of these tasks.

        Raises:
            ConfigurationError: Their messages cannot be kept apart from others'.
        """
        paused = {task_queue.task.name for task_queue in [*scheduler, *self._paused()]}
        queues = {queue_of(self._app, task_queue.task) for task_queue in scheduler} & set(
            self._consumed()
        )
        shared = {queue: self._others(queue, paused) for queue in sorted(queues)}
        for queue, others in shared.items():
            if others and not self._can_keep:
                self._refuse_to_part(queue, others)
        for task_queue in scheduler:
            task_queue.pause(self)
        self._leave(queue for queue, others in shared.items() if not others)

    def drain(self) -> None:
        """Take nothing more, whatever it is, and give back what waits."""
        self.is_drained = True
        for task_queue in self._scheduler:
            task_queue.pause(self)
        self._leave(self._consumed())

    def resume(self, scheduler: list[TaskQueue]) -> None:
        """
        Take some tasks' messages again.

        Args:
            scheduler: Of these tasks.

        Raises:
            ConfigurationError: The worker is drained, or a queue would bring what is paused.
        """
        if self.is_drained:
            raise ConfigurationError(
                "this worker is drained; batch_resume without a task has it take everything again"
            )
        names = {task_queue.task.name for task_queue in scheduler}
        still = {task_queue.task.name for task_queue in self._paused()} - names
        queues = {queue_of(self._app, task_queue.task) for task_queue in scheduler} & self._left
        for queue in sorted(queues):
            others = [name for name in self._tasks_of(queue) if name in still]
            if others and not self._can_keep:
                self._refuse_to_part(queue, others)
        self._take_again(queues, scheduler)

    def resume_all(self) -> None:
        """Take everything again that was taken before the first order to pause or drain."""
        self.is_drained = False
        self._take_again(self._left, self._paused())

    def _take_again(self, queues: Iterable[str], scheduler: Iterable[TaskQueue]) -> None:
        for task_queue in scheduler:
            self._scheduler.resume(task_queue, self)
        for queue in sorted(queues):
            self._consumer.add_task_queue(queue)
            self._left.discard(queue)
        self._look_regularly()

    def _leave(self, queues: Iterable[str]) -> None:
        queues = list(queues)
        self._left.update(queues)
        self._look_regularly()
        for queue in queues:  # all of them first: to tell the broker may be what fails
            self._app.amqp.queues.deselect(queue)
        for queue in queues:
            self._consumer.cancel_task_queue(queue)
        self._look()

    def _look_regularly(self) -> None:
        is_wanted = any(self._paused())
        if is_wanted and self._timer is None:
            self._timer = self._consumer.timer.call_repeatedly(_LOOK, self._look)
        elif not is_wanted and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """Give back what has come since, from queues that are left; give up whom nobody wants."""
        for task_queue in self._paused():
            if task_queue.kept:
                task_queue.kept.leave_out()
                self._give_back(task_queue.kept)

    def _give_back(self, kept: PausedRequests) -> None:
        comes_back = cache(self._comes_back)  # which may be a question to Redis

        def may_go(request: Any) -> bool:
            info = request.message.delivery_info or {}
            names = ("exchange", "routing_key", "consumer_tag")
            return not comes_back(*map(info.get, names))

        going = kept.take(may_go)
        try:
            self._scheduler.hand_back([request for request, _ in going])
        except Exception:  # whoever is still ours is tried again
            for request, alone in going:
                if not request.acknowledged:
                    kept.add(request, alone=alone)
            raise

    def _comes_back(self, exchange: Any, routing_key: Any, consumer_tag: Any) -> bool:
        """Say whether a message that is given back would come straight to us again."""
        task_consumer = self._consumer.task_consumer
        channel = task_consumer.channel
        if hasattr(channel, "_lookup"):  # kombu's own exchanges
            queues = channel._lookup(exchange, routing_key)  # noqa: SLF001
            return any(map(task_consumer.consuming_from, queues))
        return consumer_tag in task_consumer._active_tags.values()  # noqa: SLF001

    def _paused(self) -> list[TaskQueue]:
        return [task_queue for task_queue in self._scheduler if task_queue.is_paused_by(self)]

    def _consumed(self) -> list[str]:
        return list(self._app.amqp.queues.consume_from)

    @property
    def _can_keep(self) -> bool:
        """Whether messages are read by what each task has room for."""
        return self._scheduler.running_messages.reads_by_room

    def _others(self, queue: str, paused: set[str]) -> list[str]:
        return [name for name in self._tasks_of(queue) if name not in paused]

    def _tasks_of(self, queue: str) -> Iterator[str]:
        """Name the tasks that a queue brings; Celery's own, which few apps send, do not count."""
        for name, task in sorted(self._app.tasks.items()):
            if not name.startswith("celery.") and queue_of(self._app, task) == queue:
                yield name

    def _refuse_to_part(self, queue: str, others: list[str]) -> None:
        raise ConfigurationError(
            f"queue {queue} brings {', '.join(others)}, too, and this broker would fill the"
            f" worker with what is paused; name these tasks as well, give the task a queue"
            f" of its own, or use batch_drain"
        )
