"""
How many requests one client may send in a stretch of time.

Rule 1: Stretches are the same for everybody, cut by the clock: one increment tells all.
Rule 2: A store that is away, or slow, takes nothing down: this process counts for itself.
Rule 3: Where there is a store, counting blocks for a moment: `is_quick` says so beforehand.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from limits import parse_many
from limits.errors import ConfigurationError as LimitsError
from limits.storage import RedisStorage
from redis import ConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from celery_batch.errors import ConfigurationError

__all__ = ["Allowance", "Rates"]

log = logging.getLogger(__name__)

#: Seconds that a store may take, and for which it is left alone when it was away.
_PATIENCE, _REST = 0.25, 5.0

#: Clients counted one by one in this process; further ones are counted as one.
_MOST_CLIENTS = 100_000

_MEMORY = ("", "memory://")


@dataclass(frozen=True, slots=True)
class Allowance:
    """
    What a client has left.

    Args:
        limit: Requests in a stretch.
        stretch: Seconds.
        used: Requests so far, this one included.
        reset: Seconds to the next stretch.
    """

    limit: int
    stretch: int
    used: int
    reset: int

    @property
    def is_over(self) -> bool:
        """Whether this request is one too many."""
        return self.used > self.limit

    def headers(self) -> dict[str, str]:
        """
        Return what a client is told.

        Source: draft-ietf-httpapi-ratelimit-headers-10, sections 3 and 4.
        """
        left = max(0, self.limit - self.used)
        return {
            "RateLimit-Policy": f'"requests";q={self.limit};w={self.stretch}',
            "RateLimit": f'"requests";r={left};t={self.reset}',
        }


class _Counts:
    """
    Counts in this process's memory.

    The library's own memory store looks at all of its keys up to a hundred times a second,
    which a hundred thousand addresses make 7 ms of every request.
    """

    def __init__(self) -> None:
        self._stretch = -1
        self._counts: dict[str, int] = {}

    def incr(self, client: str, stretch: int) -> int:
        """Count a request; no lock, as a request that two threads count as one harms nobody."""
        if stretch != self._stretch:
            self._stretch, self._counts = stretch, {}
        counts = self._counts
        if client not in counts and len(counts) >= _MOST_CLIENTS:
            client = ""
        counts[client] = used = counts.get(client, 0) + 1
        return used


class Rates:
    """
    Counts each client's requests.

    Args:
        rate: Such as ``100/second`` or ``1000 per 5 minutes``; empty for no limit.
        store: Where processes count together, ``redis://host/0``; ``memory://`` or empty
            where each counts for itself.
        clock: Seconds since the epoch, the same for all who share a store.

    Raises:
        ConfigurationError: There is no such rate or store.
    """

    def __init__(self, rate: str, store: str, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._limit, self._stretch = _parsed(rate) if rate else (0, 1)
        self._counts = _Counts()
        self._store = None if store in _MEMORY else _opened(store)
        self._resting_until = 0.0

    def __bool__(self) -> bool:
        """Return whether there is a limit."""
        return bool(self._limit)

    @property
    def is_quick(self) -> bool:
        """Whether counting asks nobody, and may be done on an event loop."""
        return self._store is None or self._rests

    @property
    def _rests(self) -> bool:
        return time.monotonic() < self._resting_until

    def count(self, client: str) -> Allowance:
        """
        Count a request.

        Args:
            client: Whose it is.
        """
        now = self._clock()
        stretch = int(now // self._stretch)
        if self._store is None or self._rests:
            return self._allowance(self._counts.incr(client, stretch), now)
        return self._allowance(self._asked(self._store, client, stretch), now)

    def _asked(self, store: RedisStorage, client: str, stretch: int) -> int:
        key = f"{client}/{self._limit}/{self._stretch}/{stretch}"
        try:
            return store.incr(key, self._stretch)
        except (RedisError, OSError, ValueError) as error:
            self._resting_until = time.monotonic() + _REST
            what = type(error).__name__
            log.warning("the store of rates is away, each counts alone: %s: %s", what, error)
            return self._counts.incr(client, stretch)

    def _allowance(self, used: int, now: float) -> Allowance:
        reset = math.ceil(self._stretch - now % self._stretch) or self._stretch
        return Allowance(self._limit, self._stretch, used, reset)


def _parsed(rate: str) -> tuple[int, int]:
    try:
        items = parse_many(rate)
    except ValueError:
        items = []
    if len(items) != 1 or not items[0].amount:
        raise ConfigurationError(f"WEBAPP_RATE: must be such as 100/second, got {rate!r}")
    return items[0].amount, items[0].get_expiry()


def _opened(store: str) -> RedisStorage:
    """Return a store; nothing is connected yet."""
    scheme = store.partition("://")[0]
    if scheme not in {"redis", "rediss", "redis+unix"}:
        raise ConfigurationError(
            f"WEBAPP_RATE_STORE: must be memory:// or begin with redis://, rediss:// or "
            f"redis+unix://, got {scheme!r}"
        )
    try:
        pool = ConnectionPool.from_url(
            store.replace("redis+unix://", "unix://"),
            socket_timeout=_PATIENCE,
            socket_connect_timeout=_PATIENCE,
            retry=Retry(NoBackoff(), 1),
        )
        return RedisStorage(store, connection_pool=pool, key_prefix="webapp-rate")
    except (LimitsError, ValueError) as error:
        raise ConfigurationError(f"WEBAPP_RATE_STORE: {error}") from error
