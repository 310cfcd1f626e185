"""
Which lists of Redis to look into, and how many messages of each.

Rule 1: more urgent messages come first, and those of the queue whose turn it is.
Rule 2: what no lane could put to use soon is left for other workers.
Rule 3: while others wait before them, the less urgent have a few places kept, which are
        looked into first.
Rule 4: this is asked in each pass of the event loop: what is the same for all priorities,
        as it is where nobody uses any, is reckoned once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import product
from typing import Any

from celery_batch.worker.lanes import Lanes

__all__ = ["Lists"]


class Lists:
    """
    The lists of one channel's queues: one for each step of priority.

    Args:
        channel: Kombu's Redis channel.
        lanes: Where messages go, and how much more they can put to use.
    """

    def __init__(self, channel: Any, lanes: Lanes) -> None:
        self._channel = channel
        self._room = lanes.room
        self._names: dict[tuple[str, int], str] = {}
        #: The tasks whose messages have been seen in each queue.
        self.seen: defaultdict[str, set[str]] = defaultdict(set)

    def all(self) -> list[str]:
        """Return all of them, key prefix included."""
        channel = self._channel
        places = product(channel.active_queues, channel.priority_steps)
        return [self._name(*place) for place in places]

    def wanted(self, credit: int, most: int) -> tuple[list[str], list[str], int, str]:
        """
        Return the lists to look into, and how many messages of them.

        Args:
            credit: What is left of the prefetch.
            most: Messages of all of them at once.

        Returns:
            The lists in order, the queue of each, how many messages could be put to use, and
            how many at most of each of the first lists, as words.
        """
        channel = self._channel
        steps = channel.priority_steps
        queues = channel._queue_cycle.consume(len(channel.active_queues))  # noqa: SLF001
        rooms = {queue: self._rooms(queue, steps, credit) for queue in queues}
        is_any = any(map(any, rooms.values()))
        owed = {queue: self._owed(queue, steps, credit) for queue in queues} if is_any else {}
        places, numbers = [], []
        for at, step in enumerate(steps):
            for queue in owed:
                if number := owed[queue][at]:
                    places.append((queue, step))
                    numbers.append(str(number))
        for at, step in enumerate(steps):
            for queue in queues:
                if room := rooms[queue][at]:
                    places.append((queue, step))
                    most = min(most, room)
        names = [self._name(*place) for place in places]
        return names, [queue for queue, _ in places], most, " ".join(numbers)

    def _rooms(self, queue: str, steps: Sequence[int], credit: int) -> list[int]:
        """
        Return how many messages of each list are of use now, by what its queue has brought.

        Args:
            queue: Which.
            steps: The smaller, the more urgent; whom they overtake does not keep them out.
            credit: What is left of the prefetch.
        """
        tasks, rooms = self.seen.get(queue), []
        for step, left in zip(steps, self._room.left(tasks, steps), strict=True):
            behind = self._room.behind(tasks, step) if tasks and left > credit else 0
            rooms.append(min(left, credit + behind))
        return rooms

    def _owed(self, queue: str, steps: Sequence[int], credit: int) -> list[int]:
        """Return how many messages of each list are to be read before more urgent ones."""
        tasks = self.seen.get(queue)
        owed = self._room.owed(tasks, steps)
        return owed if tasks else [min(most, credit) for most in owed]

    def _name(self, queue: str, step: int) -> str:
        """Return the list of a queue's messages of one priority, key prefix included."""
        name = self._names.get((queue, step))
        if name is None:
            channel = self._channel
            name = channel.global_keyprefix + channel._q_for_pri(queue, step)  # noqa: SLF001
            self._names[queue, step] = name
        return name
