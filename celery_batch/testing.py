"""
Test doubles: models that work, or fail on demand, a full queue, no worker, and a clock.

The models are ordinary ones: use them directly, or make a task of
them with `as_task`.  A worker constructs a model without arguments, so all
arguments have defaults; for other values, subclass and set them there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kombu.utils.url import maybe_sanitize_url

from celery_batch.client.backpressure import refused_calls
from celery_batch.errors import ConfigurationError
from celery_batch.runtime.model import Model

__all__ = ["EchoModel", "HungryModel", "ManualClock", "PoisonModel", "full_queue", "no_worker"]


class ManualClock:
    """
    A monotonic clock that only `advance` moves, in place of `time.monotonic`.

    Args:
        now: The time it starts at, in seconds.
    """

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def __repr__(self) -> str:
        return f"<ManualClock at {self._now!r} s>"

    def __call__(self) -> float:
        """Return the time, in seconds."""
        return self._now

    def advance(self, seconds: float) -> float:
        """
        Move the clock.

        Args:
            seconds: By how much, from 0 up.

        Returns:
            The new time, in seconds.

        Raises:
            ValueError: They are negative, or not a number.
        """
        if not seconds >= 0:  # which not-a-number fails, too
            raise ValueError(f"seconds: must be 0 or more, got {seconds!r}")
        self._now += seconds
        return self._now


class EchoModel(Model):
    """Returns every item as its output; needs no library and no device."""

    def predict(self, batch: list[Any]) -> Sequence[Any]:
        """Return the items."""
        return list(batch)


class PoisonModel(EchoModel):
    """
    Returns items like `EchoModel`, but raises if a certain item is in the batch.

    The whole batch fails, as with most real models: use it to test your
    application with one caller's bad input among others.

    Args:
        poison: Batches with an item equal to this one fail.
    """

    def __init__(self, poison: Any = "poison") -> None:
        self.poison = poison

    def predict(self, batch: list[Any]) -> Sequence[Any]:
        """
        Return the items.

        Raises:
            ValueError: The poison is among them.
        """
        if self.poison in batch:
            raise ValueError(f"cannot digest {self.poison!r}")
        return super().predict(batch)


class HungryModel(EchoModel):
    """
    Returns items like `EchoModel`, but runs out of memory if the batch is too large.

    Args:
        limit: Most items it has memory for.
    """

    def __init__(self, limit: int = 8) -> None:
        self.limit = limit

    def predict(self, batch: list[Any]) -> Sequence[Any]:
        """
        Return the items.

        Raises:
            MemoryError: They are more than the limit.
        """
        if len(batch) > self.limit:
            raise MemoryError(f"out of memory: {len(batch)} items, room for {self.limit}")
        return super().predict(batch)


@contextmanager
def full_queue(task: Any, retry_after: float = 1.0) -> Iterator[None]:
    """
    Have each call of a task raise `QueueFull`, as if ``max_queue`` items waited.

    It needs no broker and holds for all threads; with ``task_always_eager``, too, but there
    not for groups, which Celery runs in place.
    Retries and calls that are made in a worker are sent, as with ``max_queue``.

    Args:
        task: The batch task.
        retry_after: Of the error, in seconds.
    """
    with refused_calls(task, retry_after):
        yield


@contextmanager
def no_worker(app: Any) -> Iterator[None]:
    """
    Have the calls of an app wait for a worker that never comes.

    They are sent, also if the app has ``task_always_eager``, and discarded at the end.
    Results time out, and no task is served.

    Args:
        app: The Celery app, with ``broker_url = "memory://"`` and no embedded worker.

    Raises:
        ConfigurationError: The app has another broker, which workers may read.
    """
    with app.connection_for_write() as connection:  # which is not opened
        if connection.transport_cls != "memory":
            is_set = bool(os.environ.get("CELERY_BROKER_URL"))
            first = "; CELERY_BROKER_URL is set, and comes before it" if is_set else ""
            raise ConfigurationError(
                f'no_worker: the app needs broker_url = "memory://", and has'
                f" {maybe_sanitize_url(str(app.conf.broker_write_url))}{first}"
            )
    was_eager, app.conf.task_always_eager = app.conf.task_always_eager, False
    try:
        yield
    finally:
        app.conf.task_always_eager = was_eager
        app.control.purge()
