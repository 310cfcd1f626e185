"""For how long devices had nothing to do, by what their processes say of their batches."""

from __future__ import annotations

from collections.abc import Collection, Mapping

__all__ = ["DeviceIdle"]


class DeviceIdle:
    """
    Adds up the time in which a worker's models had no batch, for each of its pool processes.

    A process is idle between the end of one batch's model call and the beginning of
    the next one's, whatever it does meanwhile: reading, decoding, storing results.
    What goes on in a model call is the model's own affair.  One that takes another's
    place counts from its first batch on: nobody knows when it had loaded.

    Args:
        since: When all processes were ready, on the monotonic clock.
        pids: Which these were.
    """

    def __init__(self, since: float, pids: Collection[int]) -> None:
        self._ended = dict.fromkeys(pids, since)
        self._idle = self._shown = 0.0
        self._asked = since

    def ran(self, pid: int, began: float, ended: float) -> None:
        """
        Take note that a process had a batch in its model.

        Args:
            pid: The process.
            began: When, on the monotonic clock.
            ended: Until when, likewise.
        """
        before = self._ended.get(pid)
        if before is None:
            before = began
        self._idle += max(began - before, 0.0)
        self._ended[pid] = max(ended, before)

    def gone(self, pid: int, since: float) -> None:
        """
        Forget a process that is there no more, but not for how long it was idle.

        Args:
            pid: The process.
            since: Until when it was idle, on the monotonic clock: it died then, or had a batch.
        """
        ended = self._ended.pop(pid, since)
        self._idle += max(since - ended, 0.0)

    def seconds(self, now: float, busy: Mapping[int, float], alive: Collection[int]) -> float:
        """
        Return how long processes were idle up to now; it never becomes less.

        Args:
            now: On the monotonic clock.
            busy: Which processes have a batch now, and since when.
            alive: Which processes there are.
        """
        for pid in self._ended.keys() - {*alive, *busy}:
            self.gone(pid, self._asked)  # it was seen then, and nobody knows for how long
        self._asked = now
        idle = self._idle + sum(
            max(busy.get(pid, now) - ended, 0.0) for pid, ended in self._ended.items()
        )
        self._shown = max(self._shown, idle)
        return self._shown
