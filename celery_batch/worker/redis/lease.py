"""A worker's lease on the messages it holds, and recovery of dead workers' messages.

One worker of each machine searches, its sweeper: whether a process has ended can be asked
on its own machine only.  The work of one search is bounded, however many workers there are.

One thread says every second that the worker lives and that its messages are looked
after, so that neither a busy event loop nor a model on the solo pool lets the lease
lapse.  On one worker of each machine it also looks for workers whose lease has lapsed, or
whose process has ended there.  When that worker ends, another one takes its place.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

from celery.utils.functional import noop
from celery.worker import state
from kombu.utils.encoding import bytes_to_str
from redis import Redis
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_batch.worker.redis.owner import (
    Keys,
    awake_seconds,
    describe_self,
    is_dead,
    machine,
    own_pool,
)
from celery_batch.worker.redis.restore import Restorer
from celery_batch.worker.redis.scripts import script
from celery_batch.worker.redis.silence import answers_again, break_off, keep_track

__all__ = [
    "Lease",
    "Sweeper",
]


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
        self._look = client.register_script(script("find_dead"))
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


#: Seconds from one look at the other workers to the next.
_LOOK_EVERY = 1.5


#: Renewals of which the machine's sweeper may miss all but one before another takes its place.
_SWEEPER_BEATS = 3


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
        #: Called when a worker that shuts down would connect to a Redis that is silent.
        self.before_refusal: Callable[[], object] = noop
        #: Called, perhaps again and again, when a worker that shuts down has lost its lease to
        #: the silence of Redis: what runs cannot be acknowledged any more.
        self.on_futile_stop: Callable[[], object] = noop
        #: Whether others may have taken what we hold, and nobody has looked yet.
        self.in_doubt = False
        self._seconds = seconds
        self._on_doubt = on_doubt
        self._refresh_every = min(channel.visibility_timeout / 4, _REFRESH_EVERY)
        self._beat = min(1.0, seconds / 5, self._refresh_every)
        self._renew = self.client.register_script(script("renew_lease"))
        self._retire = self.client.register_script(script("retire_sweeper"))
        self._renewed_at = self._refreshed_at = self._looked_at = awake_seconds()
        self._sweeper = Sweeper(self.client, self.keys, self.restorer, seconds)
        self._is_sweeper = False
        self._is_out = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="batch-lease", daemon=True)

    def open(self) -> None:
        """Take the lease before the first message; errors of the connection are the caller's."""
        keep_track()
        self._say()
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
            self._retire(keys=[self.keys.sweeper], args=[self.keys.owner])
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
        self._say()
        tags = {bytes_to_str(tag) for tag in self.client.hkeys(self.keys.held)}
        self._renewed_at = awake_seconds()
        self.in_doubt = False
        return tags

    def _run(self) -> None:
        while not self._stopped.wait(self._beat):
            try:
                self._renew_in_time()
                if self._is_sweeper and awake_seconds() - self._looked_at >= _LOOK_EVERY:
                    self._look_for_dead()
            except Exception as error:  # noqa: BLE001 (the lease must outlive any error)
                self._note_outage(error)
            else:
                self._note_return()

    def _renew_in_time(self) -> None:
        now = awake_seconds()
        refresh = now - self._refreshed_at >= self._refresh_every - self._beat / 2
        lapsed, sweeper, cursor = self._say("0" if refresh else "")
        while cursor != "0":
            also_lapsed, sweeper, cursor = self._say(cursor)
            lapsed = lapsed or also_lapsed
        if refresh:
            self._refreshed_at = now
        is_new_doubt = (lapsed or self.is_late) and not self.in_doubt
        self.in_doubt = self.in_doubt or is_new_doubt  # before anybody takes the lease for good
        self._renewed_at = now
        if is_new_doubt:
            self._on_doubt()
        self._be_sweeper_after(sweeper)

    def _be_sweeper_after(self, sweeper: str) -> None:
        """Become this machine's sweeper if that one's process has ended."""
        owner, _, description = sweeper.partition(" ")
        if owner != self.keys.owner and is_dead(description):
            _, now_it_is, _ = self._say(dead_sweeper=sweeper)
            owner = now_it_is.partition(" ")[0]
            self._looked_at = 0.0  # it may have held messages itself
        self._is_sweeper = owner == self.keys.owner

    def _say(self, cursor: str = "", dead_sweeper: str = "") -> tuple[bool, str, str]:
        """
        Say that we live.

        Args:
            cursor: From where on to refresh what we hold; "" for nothing of it.
            dead_sweeper: Whose place to take.

        Returns:
            Whether the lease had lapsed, who is the machine's sweeper, and the next cursor.
        """
        keys = self.keys
        lapsed, sweeper, after = self._renew(
            keys=[
                *(keys.alive, keys.owners, keys.held, keys.index),
                *(keys.due, keys.neighbours, keys.sweeper),
            ],
            args=[
                *(self.description, self.milliseconds, keys.owner, cursor),
                *(max(int(_SWEEPER_BEATS * self._beat * 1000), 1), dead_sweeper),
            ],
        )
        return bool(lapsed), bytes_to_str(sweeper), bytes_to_str(after)

    def _look_for_dead(self) -> None:
        began = awake_seconds()

        def may_go_on() -> bool:
            is_in_time = awake_seconds() - began < self._beat  # or our own lease would lapse
            return is_in_time and not self._stopped.is_set()

        if self._sweeper.sweep(may_go_on):
            self._looked_at = began

    def _note_outage(self, error: Exception) -> None:
        self._sweeper.distrust_absence()
        if self._is_out:  # one command that took long is no frozen Redis
            self._stop_without_redis(error)
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

    def _stop_without_redis(self, error: Exception) -> None:
        """Keep a Redis that is silent from holding up a worker that shuts down."""
        is_stopping = state.should_stop is not None or state.should_terminate is not None
        if not is_stopping or not isinstance(error, RedisTimeoutError):
            return
        break_off(self.client, self.before_refusal)
        if self.is_late:
            self.on_futile_stop()

    def _note_return(self) -> None:
        if self._is_out:
            self._is_out = False
            answers_again()
            logger.warning("The lease on messages is renewed again")
