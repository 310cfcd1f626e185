"""Room for calls that are made together: for all of them or none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from celery_batch.asking import Asking
from celery_batch.client.publisher import Publisher
from celery_batch.client.room import admitted, items_of

__all__ = ["let_in", "room_for"]


def let_in(app: Any, tasks: Iterable[Any]) -> tuple[Iterable[Any], ExitStack | None]:
    """
    Count a group's members in that are sent now.

    Args:
        app: The Celery app.
        tasks: Of each member its signature, its result and the group's id.

    Returns:
        The same tasks, and the context in which they are sent if any were counted.

    Raises:
        QueueFull: There is no room for all of them.
    """
    room = Publisher.of(app).room()
    limited = {
        name: task
        for name, task in app.tasks.items()
        if isinstance(task, Asking) and room.limit(task) is not None
    }
    if not limited:
        return tasks, None
    tasks = list(tasks)
    wanted: Counter[tuple[str, Any]] = Counter()
    messages = wanted.copy()
    options: dict[tuple[str, Any], Any] = {}
    for signature, *_ in tasks:
        for first in _first_of(signature):
            if first.task in limited:
                kind = (first.task, first.options.get("queue"))
                options[kind] = {**first.options, "headers": None}
                wanted[kind] += items_of(first.options)
                messages[kind] += 1
    if not wanted:
        return tasks, None
    with ExitStack() as sending:
        for kind, items in wanted.items():
            passage = room.passage(limited[kind[0]], options[kind], items, messages[kind])
            sending.enter_context(passage)
        sending.enter_context(admitted(name for name, _ in wanted))
        return tasks, sending.pop_all()


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
