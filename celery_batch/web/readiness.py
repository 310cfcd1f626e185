"""Whether batch tasks can be called: the answer of a web server's readiness probe."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from celery import Celery
from celery.local import maybe_evaluate
from kombu.exceptions import OperationalError

from celery_batch.client_methods import ClientMethods
from celery_batch.errors import ConfigurationError

__all__ = ["Readiness", "areadiness", "readiness"]

logger = logging.getLogger(__name__)

_NOT_SERVED = "no worker that has loaded its model takes it"
_NO_BROKER = "it does not answer"


@dataclass(frozen=True, slots=True)
class Readiness:
    """
    Whether tasks can be called.

    Args:
        reasons: Why each task that is not served cannot be called, by its name; or the one
            reason of ``"broker"``, if the broker has not answered. Clients may read them: why
            the broker does not answer, and its address, are in the log alone.
    """

    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def is_ready(self) -> bool:
        """Whether all tasks are served."""
        return not self.reasons

    @property
    def status(self) -> int:
        """The HTTP status of a readiness probe."""
        return 200 if self.is_ready else 503

    @property
    def body(self) -> dict[str, Any]:
        """The probe's body, for JSON."""
        return {"ready": self.is_ready, "reasons": self.reasons}


def readiness(app: Celery, tasks: Iterable[Any], *, timeout: float = 2.0) -> Readiness:
    """
    Return whether workers serve batch tasks, their models loaded.

    A worker serves a task while it consumes the queue that the task is routed to, has loaded
    its models, and is neither paused nor drained.  RabbitMQ knows consumers of queues only: a
    worker consumes when its models are loaded, whichever tasks it has.  On other brokers the
    workers are asked which queues they consume.

    No worker is asked on Redis or RabbitMQ: the answer is at most a second old while it is
    wanted every five seconds, and else one look at the broker.

    Args:
        app: The Celery app.
        tasks: Batch tasks, or their names in the app.
        timeout: Seconds to wait for the broker, for all tasks together.

    Raises:
        ConfigurationError: One of them is no batch task.
    """
    left = _countdown(timeout)
    try:
        served = {each.name: each.is_served(timeout=left()) for each in _batch_tasks(app, tasks)}
    except OperationalError as error:
        return _broker_away(error)
    return _readiness_of(served)


async def areadiness(
    app: Celery,
    tasks: Iterable[Any],
    *,
    timeout: float = 2.0,  # noqa: ASYNC109 (as its twin)
) -> Readiness:
    """Return whether workers serve batch tasks, from a coroutine; see `readiness`."""
    left = _countdown(timeout)
    try:
        served = {
            each.name: await each.ais_served(timeout=left()) for each in _batch_tasks(app, tasks)
        }
    except OperationalError as error:
        return _broker_away(error)
    return _readiness_of(served)


def _countdown(seconds: float) -> Callable[[], float]:
    """Return a function that returns how many of the seconds are left."""
    deadline = time.monotonic() + seconds
    return lambda: max(deadline - time.monotonic(), 0.0)


def _broker_away(error: OperationalError) -> Readiness:
    logger.warning("Not ready: %s", error)
    return Readiness({"broker": _NO_BROKER})


def _readiness_of(served: dict[str, bool]) -> Readiness:
    return Readiness({name: _NOT_SERVED for name, is_served in served.items() if not is_served})


def _batch_tasks(app: Celery, tasks: Iterable[Any]) -> Iterator[Any]:
    for each in tasks:
        task = app.tasks.get(each) if isinstance(each, str) else maybe_evaluate(each)
        if not isinstance(task, ClientMethods):
            raise ConfigurationError(f"{each!r} is no batch task of {app.main}")
        yield task
