"""Refuses calls whose queue is full."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from itertools import chain, islice
from typing import Any, Self

from celery._state import task_join_will_block
from celery.app.routes import MapRoute
from celery.exceptions import QueueNotFound
from kombu.exceptions import OperationalError

from celery_batch.client.publish.message import Terms
from celery_batch.client.queue_depth import Depth, DepthWatch
from celery_batch.errors import BatchError, QueueFull
from celery_batch.protocol import ROWS

__all__ = ["BrokerUnreachable", "Passage", "QueueAdmission", "admitted", "items_of"]

#: Options that say where a message goes.
_WHERE = ("queue", "exchange", "routing_key")

#: How it is told that the broker could not be reached.
_AWAY = (OperationalError, OSError)

#: Names of the tasks whose calls have been let in already, all together.
_admitted: ContextVar[frozenset[str]] = ContextVar("celery_batch_admitted", default=frozenset())


class BrokerUnreachable(BatchError, OperationalError):
    """
    The broker or the result store cannot be reached.

    With ``max_queue`` that is told at once: nobody knows whether there is room for a call.

    Args:
        words: Why.
        retry_after: Seconds after which it may answer again.
    """

    http = 503

    def __init__(self, *words: str, retry_after: float = 1.0) -> None:
        super().__init__(*words)
        #: Seconds after which the broker may answer again.
        self.retry_after = retry_after


class Passage:
    """
    What was let in, until it is sent or has failed.

    Args:
        depth: Of the queue; None if it was not counted.
        items: How many there are.
        messages: In how many messages they go.
    """

    __slots__ = ("_counted", "_depth")

    def __init__(self, depth: Depth | None = None, items: int = 0, messages: int = 0) -> None:
        self._depth = depth
        #: A list, of which one thread alone can take it.
        self._counted = [] if depth is None else [(depth, items, messages)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if self._depth is not None and isinstance(error, _AWAY):
            self._depth.fail()
        self.close()

    def close(self) -> None:
        """Take down that it is on its way no more; again, and nothing happens."""
        if not self._counted:
            return
        with suppress(IndexError):  # another thread has been as quick
            depth, items, messages = self._counted.pop()
            depth.land(items, messages)


#: Of calls that are not counted.
_ANYHOW = Passage()


class QueueAdmission:
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

    def passage(self, task: Any, options: dict[str, Any], items: int, messages: int = 1) -> Passage:
        """
        Count items in, or refuse them; return a context in which they are sent.

        Args:
            task: The task that is called.
            options: As `apply_async` takes them.
            items: How many there are.
            messages: In how many messages they go.

        Raises:
            QueueFull: There is no room for all of them.
            BrokerUnreachable: There may be none, and the broker does not answer.
        """
        queue, most = self._limited_queue(task, options), self.limit(task)
        if queue is None or most is None:
            return _ANYHOW
        if items > most:
            raise QueueFull(
                f"{task.name}: {items} items in one call never fit into max_queue={most};"
                f" send fewer at a time",
                retry_after=None,
            )
        now = time.monotonic()
        watch = DepthWatch.of(self._app)
        depth = watch.depth(queue, now)
        waiting = depth.let_in(items, most, now)
        if waiting is not None and not depth.is_seen:
            watch.await_look(depth)  # what waits may all be on its way to a broker that is away
            waiting = depth.let_in(items, most, time.monotonic())
        if waiting is None:
            if 2 * (depth.at(now) or 0) >= most:
                watch.hurry()  # before there is no room as far as we know
            return Passage(depth, items, messages)
        watch.hurry()
        raise self._refusal(task, queue, depth, items, waiting)

    async def first_look(self, task: Any, options: dict[str, Any], items: int) -> None:
        """
        Wait for the first look at a queue, so that `passage` does not block an event loop.

        Args:
            task: The task that is called.
            options: As `apply_async` takes them.
            items: How many there are.
        """
        queue, most = self._limited_queue(task, options), self.limit(task)
        if queue is None or most is None:
            return
        now = time.monotonic()
        watch = DepthWatch.of(self._app)
        depth = watch.depth(queue, now)
        if not depth.is_seen and items <= most < (depth.at(now) or 0) + items:
            await watch.first_look(depth)

    @contextmanager
    def passing(
        self, task: Any, options: dict[str, Any], rows: Iterable[Any]
    ) -> Iterator[Iterable[Any]]:
        """
        Count the items of many calls in, or refuse all of them; yield the rows, to be sent.

        Args:
            task: The task that is called.
            options: As `apply_async` takes them, the same for all.
            rows: One for each call.

        Raises:
            QueueFull: There is no room for all of them.
        """
        most = self.limit(task)
        if most is None:
            yield rows
            return
        rows = iter(rows)
        first = list(islice(rows, most + 1))
        items = len(first) * items_of(options)
        with self.passage(task, options, items, len(first)), admitted((task.name,)):
            # A call from inside a task is not refused, however many they are.
            yield chain(first, rows)

    def is_exempt(self) -> bool:
        """Return whether no call made here is refused."""
        is_worker = self._app.current_worker_task or task_join_will_block()
        return bool(is_worker or self._terms.is_eager)

    def _refusal(
        self, task: Any, queue: str, depth: Depth, items: int, waiting: int
    ) -> QueueFull | BrokerUnreachable:
        """Return why a call is refused: for want of room, or of an answer of the broker's."""
        if depth.is_doubtful:
            return BrokerUnreachable(
                f"{task.name}: the broker does not answer, and {waiting} items for queue"
                f" {queue!r} waited there or were on their way when it was last heard"
            )
        most = self.limit(task) or 0
        seconds = depth.seconds_until(waiting + items - most)
        return QueueFull(
            f"{task.name}: {waiting} items wait in queue {queue!r} and {items} more are"
            f" too many for max_queue={most}; try again in {seconds:.2g} s",
            retry_after=seconds,
        )

    def _limited_queue(self, task: Any, options: dict[str, Any]) -> str | None:
        """Return the queue in which calls may find no room; None if they may pass anyhow."""
        if self.limit(task) is None or task.name in _admitted.get() or self._is_exempt(options):
            return None
        return self._queue(task, options)

    def _is_exempt(self, options: dict[str, Any]) -> bool:
        return bool(options.get("retries")) or self.is_exempt()

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


def items_of(options: Mapping[str, Any]) -> int:
    """
    Return how many items a call asks for: the rows of a chunk, else one.

    Args:
        options: As `apply_async` takes them.
    """
    rows = (options.get("headers") or {}).get(ROWS)
    return rows if isinstance(rows, int) else 1
