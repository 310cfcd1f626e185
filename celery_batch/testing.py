"""
Doubles for tests of your own: models that behave, or misbehave, on cue, and a clock.

The models are ordinary ones: hand them to a test directly, or make a task of
them with `as_task`.  A worker constructs a model without arguments, so their
arguments all have defaults; for other values, subclass and set them there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery_batch.runtime.model import Model

__all__ = ["EchoModel", "HungryModel", "ManualClock", "PoisonModel"]


class ManualClock:
    """
    A monotonic clock that moves when told to, in place of `time.monotonic`.

    Args:
        now: The time it starts at, in seconds.
    """

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def __repr__(self) -> str:
        return f"<ManualClock at {self._now!r} s>"

    def __call__(self) -> float:
        """Return the time it is, in seconds."""
        return self._now

    def advance(self, seconds: float) -> float:
        """
        Let time pass.

        Args:
            seconds: How much, from 0 up.

        Returns:
            The time it is now.

        Raises:
            ValueError: Time would run backwards, or nowhere at all.
        """
        if not seconds >= 0:  # which not-a-number fails, too
            raise ValueError(f"seconds: must be 0 or more, got {seconds!r}")
        self._now += seconds
        return self._now


class EchoModel(Model):
    """Answers every item with itself; needs no library and no device."""

    def predict(self, batch: list[Any]) -> Sequence[Any]:
        """Return the items as they came."""
        return list(batch)


class PoisonModel(EchoModel):
    """
    Answers like an echo, but raises when a certain item is in the batch.

    The whole batch fails with it, as with most real models: use it to see what
    your application does when one caller's input spoils the others'.

    Args:
        poison: Batches with an item equal to this one fail.
    """

    def __init__(self, poison: Any = "poison") -> None:
        self.poison = poison

    def predict(self, batch: list[Any]) -> Sequence[Any]:
        """
        Return the items as they came.

        Raises:
            ValueError: The poison is among them.
        """
        if self.poison in batch:
            raise ValueError(f"cannot digest {self.poison!r}")
        return super().predict(batch)


class HungryModel(EchoModel):
    """
    Answers like an echo, but runs out of memory when the batch is too large.

    Args:
        limit: Most items it has memory for.
    """

    def __init__(self, limit: int = 8) -> None:
        self.limit = limit

    def predict(self, batch: list[Any]) -> Sequence[Any]:
        """
        Return the items as they came.

        Raises:
            MemoryError: There are more of them than the limit.
        """
        if len(batch) > self.limit:
            raise MemoryError(f"out of memory: {len(batch)} items, room for {self.limit}")
        return super().predict(batch)
