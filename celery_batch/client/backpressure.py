"""Refuses calls whose queue is full."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from itertools import chain, islice
from statistics import fmean
from typing import Any, Self

from celery._state import task_join_will_block
from celery.app.routes import MapRoute
from celery.exceptions import QueueNotFound
from kombu.exceptions import OperationalError

from celery_batch.client.publish.message import PublishSettings
from celery_batch.client.queue_depth import Depth, DepthPoller
from celery_batch.compat.tasks import call_options
from celery_batch.errors import BatchError, QueueFull
from celery_batch.payloads.store import StoreError
from celery_batch.protocol import ROWS

__all__ = [
    "Admission",
    "BrokerUnreachable",
    "QueueLimiter",
    "already_admitted",
    "items_of",
    "refused_calls",
]

#: Options that say where a message goes.
_DESTINATION = ("queue", "exchange", "routing_key")

#: Errors of a call that could not reach the broker.
_UNREACHABLE = (OperationalError, OSError)

#: Items over which their mean cost is taken; the mean before the first; and the lowest.
_COSTS, _UNKNOWN_COST, _LOWEST_COST = 100, (1.0, 0), 1e-9

#: Names of the tasks whose calls have been admitted already, all together.
_admitted: ContextVar[frozenset[str]] = ContextVar("celery_batch_admitted", default=frozenset())

#: Seconds after which to try again, by the names of tasks whose calls tests have refused.
_refused: dict[str, float] = {}


class BrokerUnreachable(BatchError, OperationalError):
    """
    The broker or the result store cannot be reached.

    With ``max_queue`` that is raised at once: whether there is room for a call is not known.

    Args:
        words: Why.
        retry_after: Seconds after which it may answer again.
    """

    status_code = 503

    def __init__(self, *words: str, retry_after: float = 1.0) -> None:
        super().__init__(*words)
        #: Seconds after which the broker may answer again.
        self.retry_after = retry_after


class Admission:
    """The context in which admitted items are sent; they count as on their way until its end."""

    __slots__ = ("_counted", "_depth")

    def __init__(self, depth: Depth | None = None, items: int = 0, messages: int = 0) -> None:
        self._depth = depth
        #: A list, since only one thread can pop its item.
        self._counted = [] if depth is None else [(items, messages)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        is_store = isinstance(error, _UNREACHABLE) and isinstance(error.__cause__, StoreError)
        self.close(failures=int(isinstance(error, _UNREACHABLE) and not is_store))

    def close(self, failures: int = 0) -> None:
        """Note that the items are on their way no more; a second call notes failures alone."""
        if self._depth is not None:
            items = messages = 0
            with suppress(IndexError):  # it was closed before
                items, messages = self._counted.pop()
            self._depth.settle(items, messages, failures)


#: Of calls that are not counted.
_UNCOUNTED = Admission()


class QueueLimiter:
    """Admits calls of one app, or refuses them at once; calls in a worker are never refused."""

    # Retries, the next task of a chain, callbacks and a task's calls belong to an admitted call.

    def __init__(self, app: Any, settings: PublishSettings) -> None:
        self._app = app
        self._settings = settings
        self._router: Any = None
        self._queues: dict[tuple[str, Any], str | None] = {}
        #: The mean cost of the items of each task as of late, and of how many.
        self._costs: dict[str, tuple[float, int]] = {}

    def limit(self, task: Any) -> int | None:
        """Return how many items may wait for a task; None for any number."""
        if task.name in _refused:
            return 0
        own: int | None = task.max_queue
        most = self._settings.max_queue if own is None else own
        if task.max_queue_cost is None:
            return most
        affordable = max(int(task.max_queue_cost / self._mean_cost(task)), 1)
        return affordable if most is None else min(most, affordable)

    def _mean_cost(self, task: Any) -> float:
        return max(self._costs.get(task.name, _UNKNOWN_COST)[0], _LOWEST_COST)

    def note_cost(self, task: Any, args: Any, kwargs: Any, rows: int = 1) -> None:
        """Learn from a call what the items of a task cost."""
        item_cost, args, kwargs = task._item_cost, args or (), kwargs or {}
        with suppress(BatchError, TypeError, ValueError):  # it fails by itself
            if rows == 1:
                costs = [item_cost.of_call(args, kwargs)]
            else:
                found = item_cost.of_rows(task._chunk_of(args, kwargs, rows).columns)
                costs = [cost for cost in found if isinstance(cost, float)]
            mean, seen = self._costs.get(task.name, _UNKNOWN_COST)
            seen = min(seen + len(costs), _COSTS)
            mean += (fmean(costs) - mean) * min(len(costs) / seen, 1.0)
            self._costs[task.name] = mean, seen

    def admit(
        self,
        task: Any,
        options: dict[str, Any],
        items: int | None = None,
        messages: int = 1,
        call: tuple[Any, Any] | None = None,
    ) -> Admission:
        """Count items, those of one call unless given, or raise; return the context of sending."""
        limited = self._limited_queue(task, options)
        if limited is None:
            return _UNCOUNTED
        queue, limit = limited
        items = items_of(options) if items is None else items
        if task.max_queue_cost is not None:
            if call is not None:
                self.note_cost(task, *call, items)
            limit = max(self.limit(task) or 0, items)  # a call of any cost fits into an empty queue
        most = task.max_queue or self._settings.max_queue or limit
        if items > most:
            raise QueueFull(
                f"{task.name}: more items in one call than max_queue={most} never fit;"
                f" send fewer at a time",
                retry_after=None,
            )
        now = time.monotonic()
        poller = DepthPoller.of(self._app)
        depth = poller.depth(queue, now)
        waiting = depth.admit(items, limit, now)
        if waiting is not None and not depth.is_measured:
            poller.wait_for_first(depth)  # what waits may all be on its way to a lost broker
            waiting = depth.admit(items, limit, time.monotonic())
        if waiting is None:
            if 2 * (depth.waiting(now) or 0) >= limit:
                poller.measure_soon()  # while there still is room
            return Admission(depth, items, messages)
        poller.measure_soon()
        if depth.may_be_unreachable:
            raise BrokerUnreachable(
                f"{task.name}: the broker does not answer, and {waiting} items for queue"
                f" {queue!r} waited there or were on their way when it last answered"
            )
        seconds = depth.seconds_until(waiting + items - limit)
        raise QueueFull(
            f"{task.name}: {waiting} items wait in queue {queue!r} and {items} more are"
            f" too many for {self._limit_text(task)}; try again in {seconds:.2g} s",
            retry_after=seconds,
        )

    def _limit_text(self, task: Any) -> str:
        if task.max_queue_cost is None:
            return f"max_queue={self.limit(task)}"
        return f"max_queue_cost={task.max_queue_cost:g} at {self._mean_cost(task):.3g} an item"

    async def await_depth(
        self, task: Any, options: Mapping[str, Any], items: int | None = None
    ) -> None:
        """Wait for the first measurement of a queue, so that `admit` does not block the loop."""
        limited = self._limited_queue(task, options)
        if limited is None:
            return
        queue, limit = limited
        items = items_of(options) if items is None else items
        now = time.monotonic()
        poller = DepthPoller.of(self._app)
        depth = poller.depth(queue, now)
        if not depth.is_measured and items <= limit < (depth.waiting(now) or 0) + items:
            await poller.await_first(depth)

    @contextmanager
    def admit_items(
        self, task: Any, options: Mapping[str, Any], items: int, messages: int
    ) -> Iterator[None]:
        """Count the items of calls that are made meanwhile, or refuse all of them at once."""
        if self.limit(task) is None:
            yield
            return
        with self.admit(task, {**options}, items, messages), already_admitted((task.name,)):
            yield

    @contextmanager
    def admit_rows(
        self, task: Any, options: dict[str, Any], rows: Iterable[Any]
    ) -> Iterator[Iterable[Any]]:
        """Admit a call for each row as by `admit_items`, and yield the rows, to be sent."""
        limit = self.limit(task)
        rows = iter(rows)
        first = [] if limit is None else list(islice(rows, limit + 1))
        if task.max_queue_cost is not None:
            first += rows  # a call of any cost fits into an empty queue
            for args, kwargs in first[:_COSTS]:
                self.note_cost(task, args, kwargs)
        with self.admit_items(task, options, len(first) * items_of(options), len(first)):
            # All rows: calls inside a task are not refused, however many they are.
            yield chain(first, rows)

    def is_exempt(self) -> bool:
        """Return whether no call made here is refused."""
        return self._is_in_worker({}) or self._settings.is_eager

    def _is_in_worker(self, options: Mapping[str, Any]) -> bool:
        """Return whether a call is part of one that was admitted."""
        is_worker = self._app.current_worker_task or task_join_will_block()
        return bool(options.get("retries") or is_worker)

    def _limited_queue(self, task: Any, options: Mapping[str, Any]) -> tuple[str, int] | None:
        """Return a call's queue and how many items may wait there; None if it is not limited."""
        if task.name in _refused and not self._is_in_worker(options):
            raise QueueFull(f"{task.name}: the queue is full", retry_after=_refused[task.name])
        limit = self.limit(task)
        if limit is None or task.name in _admitted.get():
            return None
        if self._is_in_worker(options) or self._settings.is_eager:
            return None
        queue = self._queue(task, options)
        return None if queue is None else (queue, limit)

    def _queue(self, task: Any, options: Mapping[str, Any]) -> str | None:
        """Return the name of the queue that a call goes to; None if that is not known."""
        if options.get("connection") is not None:
            return None  # perhaps another broker's
        router = self._app.amqp.router
        if router is not self._router:
            self._router, self._queues = router, {}
        destination = tuple(getattr(each, "name", each) for each in map(options.get, _DESTINATION))
        try:
            return self._queues[task.name, destination]
        except KeyError:
            found = _routed(self._app, task, options)
        if all(isinstance(route, MapRoute) for route in router.routes):
            self._queues[task.name, destination] = found  # the same for every call
        return found


def _routed(app: Any, task: Any, options: Mapping[str, Any]) -> str | None:
    given = {name: options[name] for name in _DESTINATION if options.get(name) is not None}
    try:
        routed = app.amqp.router.route({**call_options(task), **given}, task.name)
    except QueueNotFound:
        return None  # sending raises it, too
    queue = routed.get("queue")
    if queue is None and routed.get("exchange") is None:
        queue = app.conf.task_default_queue
    name: str | None = getattr(queue, "name", queue)
    return name


@contextmanager
def already_admitted(names: Iterable[str]) -> Iterator[None]:
    """Admit all calls made meanwhile of tasks with these names: they were counted together."""
    token = _admitted.set(_admitted.get().union(names))
    try:
        yield
    finally:
        _admitted.reset(token)


@contextmanager
def refused_calls(task: Any, retry_after: float) -> Iterator[None]:
    """Refuse all calls of a task in this process that are made meanwhile."""
    before = dict(_refused)
    _refused[task.name] = retry_after
    try:
        yield
    finally:
        _refused.clear()
        _refused.update(before)


def items_of(options: Mapping[str, Any]) -> int:
    """Return how many items a call with some options has: the rows of a chunk, else one."""
    rows = (options.get("headers") or {}).get(ROWS)
    return rows if isinstance(rows, int) else 1
