"""
Same inputs, computed once: those that are in flight at the same time, and those of a moment ago.

* Whoever asks first *leads*: it sends the task.  Others *join* its flight and wait for the
  same result, if the task does not expire before their own deadline.
* The last to leave a flight that has not landed has its task revoked.
* A flight that fails fails all who wait for it; who comes later begins another.
* Only outputs are kept, and only for a while.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from celery import states

from webapp.cache import MISSING, Cache
from webapp.settings import Settings

__all__ = ["SLACK", "Flight", "Known", "Sharing", "key_of"]

#: Seconds for which a shared task outlives the deadline of who has sent it, so that those who
#: come a little later, and as a rule wait as long, can join.
SLACK = 1.0


class Flight:
    """
    One input on its way.

    Args:
        key: What is asked.
        until: When its task expires, by the monotonic clock.
    """

    __slots__ = ("key", "sent", "until", "waiting")

    def __init__(self, key: bytes | None, until: float) -> None:
        self.key = key
        self.until = until
        #: How many requests wait for it.
        self.waiting = 0
        #: Its result, once it is sent; what sending has failed with; or None if who led has
        #: gone before.  Nobody who waits can cancel it for the others.
        self.sent: Future[Any] = Future()
        self.sent.set_running_or_notify_cancel()

    @property
    def result(self) -> Any:
        """Its result, if it is sent by now."""
        return self.sent.result() if self.sent.done() and not self.sent.exception() else None

    @property
    def has_landed(self) -> bool:
        """Whether its task has ended, as far as this process was told."""
        return self.result is not None and bool(self.result.reply.value)


class Known:
    """
    An output of a moment ago.

    Args:
        value: The output.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Sharing:
    """
    The flights of this process, and the outputs that it keeps.

    Args:
        settings: Whether to share, and what to keep.
        clock: Seconds; it never goes back.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._joins = settings.share
        seconds = settings.cache_seconds
        self._cache = None if seconds is None else Cache(settings.cache_items, seconds)
        self._flights: dict[bytes, Flight] = {}
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return self._joins or self._cache is not None

    def __len__(self) -> int:
        return len(self._flights)

    def board(
        self, keys: Iterable[bytes | None], deadline: float
    ) -> list[tuple[Flight | Known, bool]]:
        """
        Take a place for each input: a flight, or the output that is known.

        Args:
            keys: What is asked; None for what is shared with nobody.
            deadline: When the one who asks gives up, by the clock.

        Returns:
            For each its place, and whether it is a flight that we lead, and have to send.
        """
        now = self.clock()
        with self._lock:
            return [self._place(key, deadline, now) for key in keys]

    def _place(self, key: bytes | None, deadline: float, now: float) -> tuple[Flight | Known, bool]:
        if key is not None and self._cache is not None:
            value = self._cache.get(key, now)
            if value is not MISSING:
                return Known(value), False
        flight = None if key is None else self._flights.get(key)
        is_ours = flight is None or not _can_be_joined(flight, deadline)
        if flight is None or is_ours:
            flight = Flight(key, deadline + SLACK)
            if key is not None and self._joins:
                self._flights[key] = flight
        flight.waiting += 1
        return flight, is_ours

    def leave(self, flights: Iterable[Flight]) -> list[str]:
        """
        Wait no more; return the ids of tasks that nobody waits for and that may still run.

        Args:
            flights: Of `board`, each as often as it was there.
        """
        orphans = []
        now = self.clock()
        with self._lock:
            for flight in flights:
                flight.waiting -= 1
                if flight.has_landed:
                    self._land(flight, now)
                elif not flight.waiting:
                    self._forget(flight)
                    if flight.result is not None:
                        orphans.append(flight.result.id)
        return orphans

    def fail(self, flight: Flight, error: Exception | None) -> None:
        """
        Say that a flight was not sent.

        Args:
            flight: Which we lead.
            error: Why; None if only we have given up, and others may try.
        """
        with self._lock:
            self._forget(flight)
        if error is None:
            flight.sent.set_result(None)
        else:
            flight.sent.set_exception(error)

    def _land(self, flight: Flight, now: float) -> None:
        self._forget(flight)
        is_kept = self._cache is not None and flight.key is not None
        if is_kept and flight.result.state == states.SUCCESS:
            self._cache.put(flight.key, flight.result.result, now)  # type: ignore[union-attr, arg-type]

    def _forget(self, flight: Flight) -> None:
        if flight.key is not None and self._flights.get(flight.key) is flight:
            del self._flights[flight.key]


def _can_be_joined(flight: Flight, deadline: float) -> bool:
    if flight.until < deadline:
        return False
    if flight.sent.done() and flight.result is None:
        return False  # it was not sent
    return not flight.has_landed or flight.result.state == states.SUCCESS


def key_of(task: str, value: Any) -> bytes | None:
    """
    Return what stands for an input; None if it can be shared with nobody.

    Args:
        task: The task's name.
        value: Its argument.
    """
    if isinstance(value, bytes):
        content = b"bytes:" + value
    else:
        try:
            content = json.dumps(value, sort_keys=True).encode()
        except (TypeError, ValueError):
            return None
    return hashlib.sha256(task.encode() + b"\0" + content).digest()
