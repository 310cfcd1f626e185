"""
The search for workers that are gone, whose messages others are to run.

One worker of each machine searches, its sweeper: whether a process has ended can be asked
on its own machine only.  The work of one search is bounded, however many workers there are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from kombu.utils.encoding import bytes_to_str

from celery_batch.worker.redis_owner import Keys, awake_seconds, is_dead, machine
from celery_batch.worker.redis_restore import Restorer
from celery_batch.worker.redis_scripts import LOOK

__all__ = ["Sweeper"]

logger = logging.getLogger(__name__)

#: Seconds for which a worker may show no sign of life before it counts as dead: it may
#: be on its way back from the same outage as we.
_BENEFIT_OF_DOUBT = 2.0

#: Seconds until a worker of an earlier version is looked at again: it does not say when.
_AGAIN = 2.0


class Sweeper:
    """
    Finds dead workers and gives back what they held.

    Args:
        client: A plain Redis client.
        keys: Of the worker that searches.
        restorer: Gives messages back.
        seconds: The length of a lease.
    """

    def __init__(self, client: Any, keys: Keys, restorer: Restorer, seconds: float) -> None:
        self._keys = keys
        self._restorer = restorer
        self._seconds = seconds
        self._look = client.register_script(LOOK)
        self._cursors = ["0", "0"]
        self._first_missed: dict[str, float] = {}
        self._trusts_absence_from = 0.0

    def distrust_absence(self) -> None:
        """Note an outage: whoever shares it must have the time to come back."""
        self._trusts_absence_from = awake_seconds() + self._seconds

    def sweep(self, may_go_on: Callable[[], bool]) -> bool:
        """
        Look once, and give back what dead workers held.

        Args:
            may_go_on: Asked before each rescue, which may take a while.

        Returns:
            Whether everybody found was seen to.
        """
        for owner, alive in self._dead():
            if not may_go_on():
                return False
            given = self._restorer.rescue(owner, alive)
            if given:
                logger.warning("Gave back %d messages of a worker that is gone", given)
        return True

    def _dead(self) -> Iterator[tuple[str, str]]:
        """Yield each dead owner with what its sign of life says; "" where that has expired."""
        missing, near = self._find()
        now = awake_seconds()
        self._first_missed = {owner: self._first_missed.get(owner, now) for owner in missing}
        for owner, alive in near.items():
            if is_dead(alive):
                yield owner, alive
        for owner in missing:
            if self._is_long_gone(owner, now):
                yield owner, ""

    def _find(self) -> tuple[list[str], dict[str, str]]:
        keys = self._keys
        *cursors, missing, near = self._look(
            keys=[keys.owners, keys.due, keys.neighbours],
            args=[keys.all_alive, machine(), _AGAIN, *self._cursors],
        )
        self._cursors = [bytes_to_str(cursor) for cursor in cursors]
        words = [bytes_to_str(word) for word in near]
        here = dict(zip(words[::2], words[1::2], strict=True))
        here.pop(keys.owner, None)
        gone = [bytes_to_str(owner) for owner in missing]
        return [owner for owner in gone if owner != keys.owner], here

    def _is_long_gone(self, owner: str, now: float) -> bool:
        doubt = min(_BENEFIT_OF_DOUBT, self._seconds / 2)
        return now >= max(self._first_missed[owner] + doubt, self._trusts_absence_from)
