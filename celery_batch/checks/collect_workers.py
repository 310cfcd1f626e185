"""Asks running workers what the checks need, by remote control."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import replace
from typing import Any

from celery_batch.checks.facts import Worker
from celery_batch.cluster.control_client import ControlClient

__all__ = ["workers_of"]

#: Seconds in which workers answer.
_TIMEOUT = 2.0


def workers_of(app: Any, tasks: Collection[str]) -> tuple[Worker, ...]:
    """
    Ask all workers of an app; return those that have answered.

    Args:
        app: The Celery app.
        tasks: The names of its batch tasks.

    Raises:
        Exception: Whatever a transport raises when the broker is away.
    """
    with closing(ControlClient(app)) as client:
        stats = client.ask("stats", _TIMEOUT)
        # Workers that run no batch task may not know the second command.
        knows_it = any("batches" in each for each in stats.values())
        earlier = client.ask("batch_stats", _TIMEOUT) if knows_it else {}
        later = client.ask("batch_stats", _TIMEOUT) if knows_it else {}
        workers = [
            Worker(
                name=name,
                stats=each,
                earlier=earlier.get(name, {}),
                batch_stats=later.get(name, {}),
            )
            for name, each in sorted(stats.items())
        ]
        if all(worker.tasks.keys() >= set(tasks) for worker in workers):
            return tuple(workers)  # a worker that serves all of them discards none
        queues = client.ask("active_queues", _TIMEOUT)
        known = client.ask("registered", _TIMEOUT)
    return tuple(
        replace(
            worker,
            queues=_names(queues.get(worker.name), lambda queue: queue["name"]),
            # As in "shop.toy [rate_limit=1/s]".
            knows=_names(known.get(worker.name), lambda task: task.partition(" [")[0]),
        )
        for worker in workers
    )


def _names(answer: Any, name: Callable[[Any], str]) -> frozenset[str] | None:
    """Return the names in an answer, or None where it is no answer but an error."""
    return frozenset(map(name, answer)) if isinstance(answer, list) else None
