"""How many more messages are worth reading, by what they may bring."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import ceil

from celery_batch.worker.job import BatchJob
from celery_batch.worker.lane import Lane
from celery_batch.worker.slots import Slots

__all__ = ["LEAST_URGENT", "Room"]

#: Room for messages that no lane waits for: what the prefetch allows.
_NO_LIMIT = 1 << 20

#: An urgency that overtakes nobody.
LEAST_URGENT = 1 << 31


class Room:
    """
    What the lanes of one consumer could still put to use.

    Args:
        lanes: By the names of their tasks; there will be more.
        jobs: What is on its way.
        slots: Of the worker.
    """

    def __init__(
        self, lanes: Mapping[str, Lane], jobs: AbstractSet[BatchJob], slots: Slots
    ) -> None:
        self._lanes = lanes
        self._jobs = jobs
        self._slots = slots

    def left(self, tasks: Collection[str] | None, urgencies: Sequence[int]) -> list[int]:
        """
        Return how many more requests of each urgency could soon be put to use.

        That is to be run, made ready or gathered.  Nobody knows whose message comes next, so
        the fullest lane counts: what it cannot use is left in the broker for other workers.

        Args:
            tasks: Whose messages may come; None if anybody's may, who has room at all.
            urgencies: Of the messages; what they would overtake leaves them their room.
        """
        lanes = [lane for name, lane in list(self._lanes.items()) if tasks is None or name in tasks]
        most_urgent = min(urgencies)
        if any(lane.behind(most_urgent) for lane in lanes):
            return [self._left(lanes, tasks, urgency) for urgency in urgencies]
        # They would overtake nobody.
        return [self._left(lanes, tasks, most_urgent)] * len(urgencies)

    def _left(self, lanes: Collection[Lane], tasks: Collection[str] | None, urgency: int) -> int:
        batches, jobs = self._slots.capacity + self._slots.processes, list(self._jobs)
        rooms = [
            lane.room(batches, [job for job in jobs if job.task is lane.task], urgency)
            for lane in lanes
        ]
        if tasks is None:
            rooms = [room for room in rooms if room > 0]
        return max(min(rooms, default=_NO_LIMIT), 0)

    def owed(self, tasks: Collection[str] | None, urgencies: Sequence[int]) -> list[int]:
        """
        Return how many rows of each urgency ought to be read before more urgent messages.

        While more urgent ones are here, enough are to lie in line for their share of the
        next two batches, so that they can have it.

        Args:
            tasks: Whose messages may come; None if anybody's may.
            urgencies: Of the messages.
        """
        lanes = [lane for name, lane in list(self._lanes.items()) if tasks is None or name in tasks]
        waiting = [(lane, first) for lane in lanes if (first := lane.urgency) is not None]
        here = [first for _, first in waiting] + [job.urgency for job in list(self._jobs)]
        most_urgent = min(here, default=LEAST_URGENT)
        if most_urgent >= max(urgencies):
            return [0] * len(urgencies)
        policies = [lane.policy for lane in lanes]
        share = ceil(2 * max(each.bulk_share * each.max_batch_size for each in policies))
        return [
            max(share - sum(lane.rows_of(urgency) for lane, _ in waiting), 0)
            if most_urgent < urgency
            else 0
            for urgency in urgencies
        ]

    def behind(self, tasks: Collection[str], urgency: int) -> int:
        """Return how many wait in line whom newcomers for these tasks would overtake."""
        lanes = list(self._lanes.items())
        return sum(lane.behind(urgency) for name, lane in lanes if name in tasks)
