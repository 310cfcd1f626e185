"""
A worker's lease on the messages it holds, and its care for those of dead workers.

One thread says every second that the worker lives and that its messages are looked
after, so that neither a busy event loop nor a model on the solo pool lets the lease
lapse; and it looks for workers whose lease has lapsed, or whose process has ended on
this machine, and gives back what they held.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from kombu.utils.encoding import bytes_to_str
from redis import Redis
from redis.exceptions import RedisError

from celery_batch.worker.redis_owner import (
    Keys,
    awake_seconds,
    describe_self,
    is_dead,
    machine,
    own_pool,
)
from celery_batch.worker.redis_restore import Restorer
from celery_batch.worker.redis_scripts import MISSING, RENEW

__all__ = ["Lease"]

logger = logging.getLogger(__name__)

#: Seconds from one look at the other workers to the next.
_LOOK_EVERY = 1.5

#: Seconds for which a worker may show no sign of life before it counts as dead: it may
#: be on its way back from the same outage as we.
_BENEFIT_OF_DOUBT = 2.0

#: Most seconds from one refresh of the messages' times to the next.
_REFRESH_EVERY = 5.0


class Lease:
    """
    One connection's hold on its messages.

    Args:
        channel: Kombu's Redis channel.
        node: The worker's name in Celery.
        seconds: How long messages stay ours without a sign of life.
        on_doubt: Called on the lease's thread when others may have taken what we hold.
    """

    def __init__(
        self, channel: Any, node: str, seconds: float, on_doubt: Callable[[], object]
    ) -> None:
        self.keys = Keys.of(channel)
        self.description = describe_self(node)
        self.milliseconds = max(int(seconds * 1000), 1)
        self.client = Redis(connection_pool=own_pool(channel, max(seconds / 3, 1.0)))
        self.restorer = Restorer(channel, self.client, self.keys)
        #: Whether others may have taken what we hold, and nobody has looked yet.
        self.in_doubt = False
        self._seconds = seconds
        self._on_doubt = on_doubt
        self._refresh_every = min(channel.visibility_timeout / 4, _REFRESH_EVERY)
        self._beat = min(1.0, seconds / 5, self._refresh_every)
        self._renew = self.client.register_script(RENEW)
        self._missing = self.client.register_script(MISSING)
        self._renewed_at = self._refreshed_at = self._looked_at = awake_seconds()
        self._first_missed: dict[str, float] = {}
        self._trusts_absence_from = 0.0
        self._is_out = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="batch-lease", daemon=True)

    def open(self) -> None:
        """Take the lease before the first message; errors of the connection are the caller's."""
        self._renew(*self._renewal(refresh=False))
        self._renewed_at = awake_seconds()
        self._thread.start()

    def end(self) -> None:
        """Stop renewing, give back what is still held, and leave no record."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_LOOK_EVERY)
        try:
            self.restorer.resign(self.keys.owner)
        except (RedisError, OSError) as error:
            logger.warning(
                "Could not give messages back (%s): others will in %g s", error, self._seconds
            )
        finally:
            self.client.connection_pool.disconnect()

    @property
    def is_late(self) -> bool:
        """Whether the lease may have lapsed: this process was stopped, or Redis away."""
        return awake_seconds() - self._renewed_at > self._seconds

    def renew(self) -> set[str]:
        """Take a fresh lease now, and return the delivery tags that are still ours."""
        self._renew(*self._renewal(refresh=False))
        tags = {bytes_to_str(tag) for tag in self.client.hkeys(self.keys.held)}
        self._renewed_at = awake_seconds()
        self.in_doubt = False
        return tags

    def _run(self) -> None:
        while not self._stopped.wait(self._beat):
            try:
                self._renew_in_time()
                if awake_seconds() - self._looked_at >= _LOOK_EVERY:
                    self._looked_at = awake_seconds()
                    self._look_for_orphans()
            except Exception as error:  # noqa: BLE001 (the lease must outlive any error)
                self._note_outage(error)
            else:
                self._note_return()

    def _renew_in_time(self) -> None:
        now = awake_seconds()
        refresh = now - self._refreshed_at >= self._refresh_every - self._beat / 2
        lapsed = self._renew(*self._renewal(refresh=refresh))
        if refresh:
            self._refreshed_at = now
        is_new_doubt = (lapsed or self.is_late) and not self.in_doubt
        self.in_doubt = self.in_doubt or is_new_doubt  # before anybody takes the lease for good
        self._renewed_at = now
        if is_new_doubt:
            self._on_doubt()

    def _renewal(self, *, refresh: bool) -> tuple[list[str], list[Any]]:
        keys = self.keys
        return (
            [keys.alive, keys.owners, keys.held, keys.index],
            [self.description, self.milliseconds, keys.owner, int(refresh)],
        )

    def _look_for_orphans(self) -> None:
        now, keys = awake_seconds(), self.keys
        found = self._missing(keys=[keys.owners], args=[keys.all_alive, machine()])
        known = {bytes_to_str(owner): bytes_to_str(alive) for owner, alive in found}
        known.pop(keys.owner, None)
        missing = {owner: now for owner, alive in known.items() if not alive}
        self._first_missed = {**missing, **_common(self._first_missed, missing)}
        for owner, alive in known.items():
            gone = not alive and self._is_long_gone(owner, now)
            if not self._stopped.is_set() and (gone or (alive and is_dead(alive))):
                given = self.restorer.rescue(owner, alive)
                if given:
                    logger.warning("Gave back %d messages of a worker that is gone", given)

    def _is_long_gone(self, owner: str, now: float) -> bool:
        doubt = min(_BENEFIT_OF_DOUBT, self._seconds / 2)
        return now >= max(self._first_missed[owner] + doubt, self._trusts_absence_from)

    def _note_outage(self, error: Exception) -> None:
        # Whoever shares this outage must have the time to come back.
        self._trusts_absence_from = awake_seconds() + self._seconds
        if self._is_out or self._stopped.is_set():
            return
        self._is_out = True
        known = isinstance(error, (RedisError, OSError))
        logger.warning(
            "Cannot renew the lease on messages (%s): kept for %g s, tried again until then",
            error,
            self._seconds,
            exc_info=None if known else error,
        )

    def _note_return(self) -> None:
        if self._is_out:
            self._is_out = False
            logger.warning("The lease on messages is renewed again")


def _common(old: dict[str, float], new: dict[str, float]) -> dict[str, float]:
    return {owner: since for owner, since in old.items() if owner in new}
