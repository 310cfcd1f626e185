"""Many calls of a task in one write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import chain, islice
from typing import Any

from kombu.exceptions import OperationalError

from celery_batch.client.backpressure import QueueLimiter, already_admitted, items_of
from celery_batch.client.publish.buffer import BulkWrite, call_in_bulk, canvas_bulk
from celery_batch.client.publish.message import new_id
from celery_batch.client.publish.publisher import Publisher
from celery_batch.client.publish.series import NO_OPTIONS, CallSeries, check_call, expect_members
from celery_batch.client.publish.templates import is_plain_celery
from celery_batch.client_methods import ClientMethods
from celery_batch.compat.fast_paths import FastPaths
from celery_batch.errors import BatchError, ConfigurationError
from celery_batch.payloads.arguments import may_be_large, with_stored_values
from celery_batch.protocol import PAYLOADS

__all__ = ["PartlySent", "SeriesSender", "apply_chunks", "apply_many", "send_group"]

#: Members of a group whose costs are taken for those of all.
_SAMPLE = 100


class PartlySent(BatchError, OperationalError):
    """
    Some of many calls were sent, and then no more.

    Of the others, those of the write that failed may have arrived nevertheless.

    Args:
        message: Why.
        sent: The results of those that were surely sent, in order.
        places: The same by their places among the calls, counted from 0.
    """

    status_code = 503

    def __init__(
        self, message: str, sent: list[Any] | None = None, places: dict[int, Any] | None = None
    ) -> None:
        super().__init__(message)
        #: Results of the calls that were surely sent.
        self.sent = sent or []
        #: The same by their places among the calls.
        self.places = places or {}


def apply_many(task: Any, rows: Iterable[Any], options: dict[str, Any]) -> list[Any]:
    """Send one call for each row; see `ClientMethods.apply_many`."""
    if "task_id" in options:
        raise ConfigurationError(f"{task.name}: many calls cannot have one task_id")
    publisher = Publisher.of(task.app)
    results: list[Any] = []
    rows = map(_call_of, rows)
    with publisher.limiter().admit_rows(task, options, rows) as admitted, _bulk(results) as bulk:
        series = SeriesSender(bulk, options)
        for args, kwargs in admitted:
            # A generator of rows may connect a receiver of signals meanwhile.
            result = series.send(task, args, kwargs) if is_plain_celery(task.app) else None
            if result is None:
                result = call_in_bulk(
                    bulk, task, partial(task.apply_async, args, kwargs, **options)
                )
            results.append(result)
    return results


def _call_of(row: Any) -> tuple[Any, Any]:
    """Return the arguments of a call, by position and by name."""
    try:
        args, kwargs = row
        are_args = args is None or isinstance(args, (tuple, list))
        if are_args and (kwargs is None or isinstance(kwargs, (dict, Mapping))):
            return args, kwargs
    except (TypeError, ValueError):
        pass
    raise TypeError(
        f"each row must be the arguments of a call by position and by name, such as ((1,), None),"
        f" got {row!r:.60}; delay_many takes items as they are"
    )


class SeriesSender:
    """Makes calls on the fast path; looks up once what those of one kind have in common."""

    def __init__(self, bulk: BulkWrite, options: Mapping[str, Any] = NO_OPTIONS) -> None:
        self._bulk, self._options = bulk, options
        self._series: dict[Any, CallSeries | None] = {}

    def send(
        self,
        task: Any,
        args: Any,
        kwargs: Any,
        own: Mapping[str, Any] = NO_OPTIONS,  # expires and headers, beside what all calls have
    ) -> Any:
        """Make a call that was admitted, and return its result; None if it takes another path."""
        if may_be_large(args, kwargs):
            return self._send_large(task, args, kwargs, own)
        series = self._series_of(task, own, args, kwargs)
        return series and series.send(args, kwargs, self._bulk, own=own)

    def _send_large(self, task: Any, args: Any, kwargs: Any, own: Mapping[str, Any]) -> Any:
        options = {**self._options, **own}
        headers = {**(options.get("headers") or {}), PAYLOADS: []}
        series = self._series_of(task, {**own, "headers": headers}, args, kwargs)
        if series is None:
            return None  # before anything is stored
        options["task_id"] = new_id()
        args, kwargs, options = with_stored_values(task, args, kwargs, options, self._bulk.uploads)
        if PAYLOADS in (options.get("headers") or {}):
            own = {**own, "headers": options["headers"], "task_id": options["task_id"]}
        else:
            series = self._series_of(task, own, args, kwargs)
        return series and series.send(args, kwargs, self._bulk, own=own)

    def _series_of(
        self, task: Any, own: Mapping[str, Any], args: Any, kwargs: Any
    ) -> CallSeries | None:
        kind = id(task), *own
        series = self._series.get(kind)
        if series is None:
            options = {**self._options, **own}
            try:
                series = self._series[kind] = Publisher.of(task.app).series(task, options, own)
            except OperationalError:
                check_call(task, args, kwargs, options.get("serializer"))
                raise
        return series


def apply_chunks(task: Any, chunks: Iterable[Any], options: dict[str, Any]) -> list[Any]:
    """Send some chunks as `apply_many`; where ``max_queue`` is set, each is admitted by itself."""
    results: list[Any] = []
    with _bulk(results) as bulk:
        for columns in chunks:
            call = partial(task.apply_rows, *columns, **options)
            results.append(call_in_bulk(bulk, task, call))
    return results


@contextmanager
def _bulk(results: list[Any]) -> Iterator[BulkWrite]:
    """Write the calls of this block at its end, and say which were sent if not all were."""
    with closing(BulkWrite()) as bulk:
        try:
            yield bulk
            bulk.finish()
        except Exception as error:
            if not bulk.sent:
                raise
            sent = {result.id for result in bulk.sent}
            places = {place: each for place, each in enumerate(results) if each.id in sent}
            raise partly_sent(places, error) from error


def partly_sent(places: dict[int, Any], error: Exception) -> PartlySent:
    """Return the error that says which of many calls were surely sent, by their places."""
    sent = list(places.values())
    return PartlySent(f"only {len(sent)} calls were surely sent: {error}", sent, places)


#: Sends a group's members with a producer, as they are read, and yields their results.
Apply = Callable[[Iterable[Any], Any], Iterator[Any]]


def send_group(app: Any, tasks: Iterable[Any], producer: Any, apply: Apply) -> Iterator[Any]:
    """Send a group's members, a thousand in one write, and return their results."""
    tasks, admission = _admit_members(app, tasks)
    is_bulk = producer is None and FastPaths.of(app).is_on("publish")
    if admission is None:
        return iter(_send_in_bulk(app, tasks, apply)) if is_bulk else apply(tasks, producer)
    with admission:
        return iter(_send_in_bulk(app, tasks, apply) if is_bulk else [*apply(tasks, producer)])


def _send_in_bulk(app: Any, tasks: Iterable[Any], apply: Apply) -> list[Any]:
    results: list[Any] = []
    with canvas_bulk(app) as bulk:
        try:
            with app.producer_or_acquire() as producer:
                bulk.producer = producer
                for result in apply(expect_members(app, tasks, bulk.frozen), producer):
                    results.append(result)
                    bulk.flush_if_due()
            bulk.producer = None  # so that others' messages go along
            bulk.finish()
        except OperationalError as error:
            unsent = {result.id for result in bulk.unsent + bulk.unwritten()}
            firsts = [_first(result).id for result in results]
            sent = {n: each for n, each in enumerate(results) if firsts[n] not in unsent}
            if not sent:
                raise
            raise partly_sent(sent, error) from error
    return results


def _first(result: Any) -> Any:
    """Return the result of the call with which a member begins."""
    while (parent := getattr(result, "parent", None)) is not None:
        result = parent
    return result


class _Count:
    """How many items and messages a group's members have for one task and queue."""

    options: Any = None
    items = messages = 0


def _admit_members(app: Any, tasks: Iterable[Any]) -> tuple[Iterable[Any], ExitStack | None]:
    """Admit a group's members that are sent now, or refuse all; return them, and the context."""
    # A generator is read until its members have no room or all are known.  If the first have no
    # limit it is read no further ahead: the others are admitted one by one.
    limiter = Publisher.of(app).limiter()
    limits = {
        name: limit
        for name, task in app.tasks.items()
        if isinstance(task, ClientMethods) and (limit := limiter.limit(task)) is not None
    }
    if not limits or limiter.is_exempt():
        return tasks, None
    tasks = iter(tasks)
    head = list(islice(tasks, max(limits.values()) + 1))
    if any(app.tasks[name].max_queue_cost is not None for name in limits):
        head += tasks  # calls of any cost fit into an empty queue
        _note_costs(app, limiter, head)
    counts = _count(head, limits)
    if not counts:
        return chain(head, tasks), None
    if all(count.items <= limits[name] for (name, _), count in counts.items()):
        head += tasks
        counts = _count(head, limits)
    with ExitStack() as sending:
        for (name, _), count in counts.items():
            admission = limiter.admit(app.tasks[name], count.options, count.items, count.messages)
            sending.enter_context(admission)
        sending.enter_context(already_admitted(name for name, _ in counts))
        return head, sending.pop_all()


def _note_costs(app: Any, limiter: QueueLimiter, members: Sequence[Any]) -> None:
    """Learn what items cost from the first members of a group whose queues are limited by cost."""
    for signature, *_ in members[:_SAMPLE]:
        for first in _first_of(signature):
            task = app.tasks.get(first.task)
            if getattr(task, "max_queue_cost", None) is not None:
                limiter.note_cost(task, first.args, first.kwargs, items_of(first.options))


def _count(members: Iterable[Any], limits: Mapping[str, int]) -> dict[tuple[str, Any], _Count]:
    """Count the members that are sent at once and have a limit, by their tasks and queues."""
    counts: dict[tuple[str, Any], _Count] = {}
    for signature, *_ in members:
        for first in _first_of(signature):
            if first.task in limits:
                count = counts.setdefault((first.task, first.options.get("queue")), _Count())
                count.options = {**first.options, "headers": None}
                count.items += items_of(first.options)
                count.messages += 1
    return counts


def _first_of(signature: Any) -> Iterator[Any]:
    """Yield the single tasks that are sent when a signature is called."""
    if not signature.subtask_type:
        yield signature
        return
    members = signature.tasks
    if signature.subtask_type == "chain":
        members = members[:1]
    elif not isinstance(members, (list, tuple)):
        return  # made as they are sent, and admitted one by one
    for member in members:
        yield from _first_of(member)
