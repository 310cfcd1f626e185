"""For how long devices had nothing to do, by what their processes say of their batches."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["DeviceIdle"]


class DeviceIdle:
    """
    Adds up the time in which a worker's models had no batch, for each of its pool processes.

    A process is idle between the end of one batch's model call and the beginning of
    the next one's, whatever it does meanwhile: reading, decoding, storing results.
    What goes on in a model call is the model's own affair.

    Args:
        since: When all processes were ready, on the monotonic clock.
        processes: How many there were then.
    """

    def __init__(self, since: float, processes: int) -> None:
        self._since = since
        self._first = processes
        self._ended: dict[int, float] = {}
        self._idle = self._shown = 0.0

    def ran(self, pid: int, began: float, ended: float) -> None:
        """
        Take note that a process had a batch in its model.

        Args:
            pid: The process.
            began: When, on the monotonic clock.
            ended: Until when, likewise.
        """
        before = self._ended.get(pid)
        if before is None and self._first > 0:
            self._first -= 1
            before = self._since
        if before is not None:  # a process that replaces another was loading before
            self._idle += max(began - before, 0.0)
        self._ended[pid] = max(ended, before or ended)

    def lost(self, pid: int) -> None:
        """Forget a process that died; what comes in its place begins anew."""
        self._ended.pop(pid, None)

    def seconds(self, now: float, busy: Mapping[int, float]) -> float:
        """
        Return how long processes were idle up to now; it never becomes less.

        Args:
            now: On the monotonic clock.
            busy: Which processes have a batch now, and since when.
        """
        idle = self._idle + sum(
            max(busy.get(pid, now) - ended, 0.0) for pid, ended in self._ended.items()
        )
        first = [began for pid, began in busy.items() if pid not in self._ended]
        first += [now] * (self._first - len(first))
        idle += sum(max(until - self._since, 0.0) for until in first[: self._first])
        self._shown = max(self._shown, idle)
        return self._shown
