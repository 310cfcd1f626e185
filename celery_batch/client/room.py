"""Whether there is room in a queue for more items; the rule is `max_queue`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from math import ceil
from typing import Any

from celery._state import task_join_will_block
from celery.app.routes import MapRoute
from celery.exceptions import QueueNotFound

from celery_batch.chunks import ROWS
from celery_batch.client.depth_watch import DepthWatch
from celery_batch.client.terms import Terms
from celery_batch.errors import QueueFull

__all__ = ["Room", "admitted", "items_of"]

#: Options that say where a message goes.
_WHERE = ("queue", "exchange", "routing_key")

#: Names of the tasks whose calls have been let in already, all together.
_admitted: ContextVar[frozenset[str]] = ContextVar("celery_batch_admitted", default=frozenset())


class Room:
    """
    Lets calls of one app pass, or refuses them at once.

    What runs in a worker is never refused: retries, the next task of a chain, callbacks
    and whatever a task calls belong to something that was let in.

    Args:
        app: The Celery app.
        terms: Its settings.
    """

    def __init__(self, app: Any, terms: Terms) -> None:
        self._app = app
        self._terms = terms
        self._router: Any = None
        self._queues: dict[tuple[str, Any], str | None] = {}

    def limit(self, task: Any) -> int | None:
        """
        Return how many items may wait for a task; None for any number.

        Args:
            task: The task.
        """
        own: int | None = task.max_queue
        return self._terms.most_queued if own is None else own

    def check(self, task: Any, options: dict[str, Any], items: int, messages: int = 1) -> None:
        """
        Count items in, or refuse them.

        Args:
            task: The task that is called.
            options: As `apply_async` takes them.
            items: How many there are.
            messages: In how many messages they go.

        Raises:
            QueueFull: There is no room for all of them.
        """
        most = self.limit(task)
        if most is None or task.name in _admitted.get() or self._is_exempt(options):
            return
        queue = self._queue(task, options)
        if queue is None:
            return
        now = time.monotonic()
        depth = DepthWatch.of(self._app).depth(queue, now)
        if items > most:
            raise QueueFull(
                f"{task.name}: {items} items in one call never fit into max_queue={most};"
                f" send fewer at a time"
            )
        waiting = depth.at(now)
        if waiting is not None and waiting + items > most:
            seconds = depth.seconds_until(waiting + items - most, now)
            raise QueueFull(
                f"{task.name}: {ceil(waiting)} items wait in queue {queue!r} and {items} more are"
                f" too many for max_queue={most}; try again in {seconds:.2g} s",
                retry_after=seconds,
            )
        depth.add(items, messages)

    def check_rows(self, task: Any, options: dict[str, Any], rows: Iterable[Any]) -> Iterable[Any]:
        """
        Count the items of many calls in, or refuse all of them; return the rows.

        Args:
            task: The task that is called.
            options: As `apply_async` takes them, the same for all.
            rows: One for each call.

        Raises:
            QueueFull: There is no room for all of them.
        """
        most = self.limit(task)
        if most is None:
            return rows
        rows = iter(rows)
        first = list(islice(rows, most + 1))
        self.check(task, options, len(first) * items_of(options), len(first))
        # A call from inside a task is not refused, however many they are.
        return [*first, *rows]

    def _is_exempt(self, options: dict[str, Any]) -> bool:
        is_worker = self._app.current_worker_task or task_join_will_block()
        return bool(is_worker or options.get("retries") or self._terms.is_eager)

    def _queue(self, task: Any, options: dict[str, Any]) -> str | None:
        """Return the name of the queue that a call goes to; None if that is not known."""
        if options.get("connection") is not None:
            return None  # perhaps another broker's
        router = self._app.amqp.router
        if router is not self._router:
            self._router, self._queues = router, {}
        where = tuple(getattr(each, "name", each) for each in map(options.get, _WHERE))
        try:
            return self._queues[task.name, where]
        except KeyError:
            found = _routed(self._app, task, options)
        if all(isinstance(route, MapRoute) for route in router.routes):
            self._queues[task.name, where] = found  # so it is with every call
        return found


def _routed(app: Any, task: Any, options: dict[str, Any]) -> str | None:
    given = {name: options[name] for name in _WHERE if options.get(name) is not None}
    try:
        routed = app.amqp.router.route({**task._get_exec_options(), **given}, task.name)  # noqa: SLF001
    except QueueNotFound:
        return None  # who sends is told
    queue = routed.get("queue")
    if queue is None and routed.get("exchange") is None:
        queue = app.conf.task_default_queue
    name: str | None = getattr(queue, "name", queue)
    return name


@contextmanager
def admitted(names: Iterable[str]) -> Iterator[None]:
    """
    Ask nothing more of the calls made meanwhile: they were counted in together.

    Args:
        names: Of the tasks that are called.
    """
    token = _admitted.set(_admitted.get().union(names))
    try:
        yield
    finally:
        _admitted.reset(token)


def items_of(options: dict[str, Any]) -> int:
    """
    Return how many items a call asks for: the rows of a chunk, else one.

    Args:
        options: As `apply_async` takes them.
    """
    rows = (options.get("headers") or {}).get(ROWS)
    return rows if isinstance(rows, int) else 1
