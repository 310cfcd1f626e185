"""Many calls of a task in one write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import chain, islice
from typing import Any

from kombu.exceptions import OperationalError

from celery_batch.client.backpressure import QueueAdmission, admitted, items_of
from celery_batch.client.publish.buffer import Gathering, gathered_by, gathering
from celery_batch.client.publish.fast_path import foreseen
from celery_batch.client.publish.publisher import Publisher
from celery_batch.client_methods import ClientMethods
from celery_batch.errors import BatchError, ConfigurationError

__all__ = [
    "PartlySent",
    "apply_chunks",
    "apply_many",
    "partly_sent",
    "room_for",
    "send_group",
]


class PartlySent(BatchError, OperationalError):
    """
    Some of many calls were sent, and then no more.

    Of the others, those of the write that failed may have arrived nevertheless.

    Args:
        message: Why.
        sent: The results of those that were surely sent, in order.
        places: The same by their places among the calls, counted from 0.
    """

    http = 503

    def __init__(
        self, message: str, sent: list[Any] | None = None, places: dict[int, Any] | None = None
    ) -> None:
        super().__init__(message)
        #: Results of the calls that were surely sent.
        self.sent = sent or []
        #: The same by their places among the calls.
        self.places = places or {}


def apply_many(task: Any, rows: Iterable[Any], options: dict[str, Any]) -> list[Any]:
    """
    Send one call for each row.

    Args:
        task: The task that is called.
        rows: Positional and keyword arguments of each call.
        options: As for `apply_async`, the same for all.

    Raises:
        PartlySent: Not all of them could be sent.
        QueueFull: There is no room for all of them.
    """
    if "task_id" in options:
        raise ConfigurationError(f"{task.name}: many calls cannot have one task_id")
    with Publisher.of(task.app).room().passing(task, options, rows) as passing:
        return _apply_many(task, passing, options)


def _apply_many(task: Any, rows: Iterable[Any], options: dict[str, Any]) -> list[Any]:
    results: list[Any] = []
    with _in_one_write(results) as gathering:
        series = None
        for args, kwargs in rows:  # whoever makes the rows may send and wait meanwhile
            if series is None or not series.holds():
                series = Publisher.of(task.app).series(task, options)
            result = series and series.send(args, kwargs, gathering)
            if result is None:
                call = partial(task.apply_async, args, kwargs, **options)
                result = gathered_by(gathering, task, call)
            results.append(result)
    return results


def apply_chunks(task: Any, chunks: Iterable[Any], options: dict[str, Any]) -> list[Any]:
    """
    Send some chunks; where ``max_queue`` holds, each is let in by itself.

    Args:
        task: The task that is called.
        chunks: The columns of each.
        options: As for `apply_async`, the same for all.

    Raises:
        PartlySent: Not all of them could be sent.
    """
    results: list[Any] = []
    with _in_one_write(results) as gathering:
        for columns in chunks:
            call = partial(task.apply_rows, *columns, **options)
            results.append(gathered_by(gathering, task, call))
    return results


@contextmanager
def _in_one_write(results: list[Any]) -> Iterator[Gathering]:
    """Write what is gathered in this block at its end, and say what was sent if not all was."""
    with closing(Gathering()) as gathering:
        try:
            yield gathering
            gathering.flush()
        except Exception as error:
            if not gathering.sent:
                raise
            raise partly_sent(_by_place(results, gathering), error) from error


def _by_place(results: list[Any], gathering: Gathering) -> dict[int, Any]:
    """Return the results of the calls that were surely sent, by their places."""
    sent = {each.id for each in gathering.sent}
    return {place: result for place, result in enumerate(results) if result.id in sent}


def partly_sent(places: dict[int, Any], error: Exception) -> PartlySent:
    """
    Return the error that says which of many calls were sent.

    Args:
        places: Results of the calls that were surely sent, by their places among all calls.
        error: Why the others were not.
    """
    sent = list(places.values())
    return PartlySent(f"only {len(sent)} calls were surely sent: {error}", sent, places)


#: Sends a group's members with a producer, as they are read, and yields their results.
Apply = Callable[[Iterable[Any], Any], Iterator[Any]]


def send_group(app: Any, tasks: Iterable[Any], producer: Any, apply: Apply) -> Iterator[Any]:
    """
    Send a group's members, a thousand in one write, and return their results.

    Members that a generator makes are sent as they are made.

    Args:
        app: The Celery app.
        tasks: Of each member its signature, its result and the group's id.
        producer: Whose messages are not gathered; None for one of the app's.
        apply: Celery's own way to send them.

    Raises:
        QueueFull: There is no room for all of them.
        PartlySent: Not all of them could be sent; it says which were.
    """
    tasks, passage = _let_in(app, tasks)
    is_gathered = producer is None and app.conf.get("batch_bulk", True)
    if passage is None:
        return iter(_gathered(app, tasks, apply)) if is_gathered else apply(tasks, producer)
    with passage:
        return iter(_gathered(app, tasks, apply) if is_gathered else [*apply(tasks, producer)])


def _gathered(app: Any, tasks: Iterable[Any], apply: Apply) -> list[Any]:
    results: list[Any] = []
    with gathering(app) as gathered:
        try:
            with app.producer_or_acquire() as producer, gathered.writing_with(producer):
                for result in apply(foreseen(app, tasks, gathered.frozen), producer):
                    results.append(result)
                    gathered.flush_if_due()
            gathered.flush()  # with no producer in hand: others' messages go along
        except OperationalError as error:
            sent = _surely_sent(results, gathered)
            if not sent:
                raise
            raise partly_sent(sent, error) from error
    return results


def _surely_sent(results: list[Any], gathered: Gathering) -> dict[int, Any]:
    """Return the results of the members that were sent, by their places."""
    unsent = {result.id for result in gathered.unsent + gathered.kept()}
    return {
        place: result for place, result in enumerate(results) if _first(result).id not in unsent
    }


def _first(result: Any) -> Any:
    """Return the result of the call with which a member begins."""
    while (parent := getattr(result, "parent", None)) is not None:
        result = parent
    return result


def _let_in(app: Any, tasks: Iterable[Any]) -> tuple[Iterable[Any], ExitStack | None]:
    """
    Count a group's members in that are sent now.

    A generator is read until its members have no room or all are known.  One whose first
    members have no limit is not read ahead any further: the others ask for room themselves.

    Args:
        app: The Celery app.
        tasks: Of each member its signature, its result and the group's id.

    Returns:
        The same tasks, and the context in which they are sent if any were counted.

    Raises:
        QueueFull: There is no room for all of them.
    """
    room = Publisher.of(app).room()
    limits = {
        name: (task, limit)
        for name, task in app.tasks.items()
        if isinstance(task, ClientMethods) and (limit := room.limit(task)) is not None
    }
    if not limits or room.is_exempt():
        return tasks, None
    tasks = iter(tasks)
    head = list(islice(tasks, max(limit for _, limit in limits.values()) + 1))
    wanted = _Wanted({name: task for name, (task, _) in limits.items()}, head)
    if not wanted.items:
        return chain(head, tasks), None
    if not any(items > limits[name][1] for (name, _), items in wanted.items.items()):
        rest = list(tasks)
        wanted.add(rest)
        head += rest
    return head, wanted.passages(room)


class _Wanted:
    """
    How much room a group's members take, by their tasks and queues.

    Args:
        limited: The tasks that have a limit, by their names.
        members: Of each its signature, its result and the group's id.
    """

    def __init__(self, limited: dict[str, Any], members: Iterable[Any]) -> None:
        self.items: Counter[tuple[str, Any]] = Counter()
        self._messages: Counter[tuple[str, Any]] = Counter()
        self._options: dict[tuple[str, Any], Any] = {}
        self._limited = limited
        self.add(members)

    def add(self, members: Iterable[Any]) -> None:
        """Count the members that are sent at once."""
        for signature, *_ in members:
            for first in _first_of(signature):
                if first.task in self._limited:
                    kind = (first.task, first.options.get("queue"))
                    self._options[kind] = {**first.options, "headers": None}
                    self.items[kind] += items_of(first.options)
                    self._messages[kind] += 1

    def passages(self, room: QueueAdmission) -> ExitStack:
        """
        Return the context in which all of them are sent.

        Raises:
            QueueFull: There is no room for all of them.
        """
        with ExitStack() as sending:
            for kind, items in self.items.items():
                task, messages = self._limited[kind[0]], self._messages[kind]
                sending.enter_context(room.passage(task, self._options[kind], items, messages))
            sending.enter_context(admitted(name for name, _ in self.items))
            return sending.pop_all()


def _first_of(signature: Any) -> Iterator[Any]:
    """Yield the single tasks that are sent when a signature is called."""
    if not signature.subtask_type:
        yield signature
        return
    members = signature.tasks
    if signature.subtask_type == "chain":
        members = members[:1]
    elif not isinstance(members, (list, tuple)):
        return  # made as they are sent; each asks for room itself
    for member in members:
        yield from _first_of(member)


@contextmanager
def room_for(task: Any, options: Mapping[str, Any], items: int) -> Iterator[None]:
    """
    Count calls in that are made meanwhile, each for one item, or refuse all of them at once.

    Args:
        task: The task that is called.
        options: As `apply_async` takes them, the same for all.
        items: How many calls there will be.

    Raises:
        QueueFull: There is no room for all of them.
    """
    room = Publisher.of(task.app).room()
    if room.limit(task) is None:
        yield
        return
    with room.passage(task, {**options}, items, items), admitted((task.name,)):
        yield
