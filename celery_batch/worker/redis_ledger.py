"""A worker's entries in the books on Redis: what runs, and what is no longer its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from celery.concurrency.solo import TaskPool as SoloPool
from redis.exceptions import RedisError

from celery_batch.worker.ledger import NoLedger
from celery_batch.worker.redis_acks import BulkAcks
from celery_batch.worker.redis_lease import Lease
from celery_batch.worker.redis_restore import Terms

__all__ = ["RedisLedger"]


class RedisLedger(NoLedger):
    """
    The entries for one connection's messages.

    Args:
        pool: Celery's.
        lease: On the messages.
        acks: The entries go with the acknowledgements.
        drop: Told the delivery tags of messages that others have taken.
    """

    collects = reads_by_room = True

    def __init__(
        self, pool: Any, lease: Lease, acks: BulkAcks, drop: Callable[[set[str]], object]
    ) -> None:
        self._is_solo = isinstance(pool, SoloPool)
        self._lease = lease
        self._acks = acks
        self._drop = drop

    def started(self, task_requests: Sequence[Any]) -> None:
        """
        Note that a batch runs: should this worker die, each message has been lost once.

        Args:
            task_requests: Celery's requests, on whichever connection they came.
        """
        self._acks.mark(request.message.delivery_tag for request in task_requests)
        if self._is_solo:
            self._acks.flush()  # the model runs before the event loop comes by again

    def give_back(self, task_requests: Sequence[Any]) -> None:
        """
        Put the messages of requests back to the front of their queues, in their order.

        Args:
            task_requests: Celery's requests, none of which has run; oldest first.

        Raises:
            RedisError: Redis cannot be reached, or refuses; nobody is to be told twice.
        """
        tags = [request.message.delivery_tag for request in task_requests]
        flags = dict.fromkeys(reversed(tags), "0")  # whose message is put there last goes first
        self._lease.restorer.give_back(flags, Terms(self._lease.keys.owner))
        self._acks.let_go(tags)
        for request in task_requests:
            request.given_back()

    def lost_tags(self) -> set[str]:
        """
        Return the delivery tags of what is in this worker but no longer its own.

        Others take what a worker holds when it has shown no sign of life for the length
        of its lease.  Asks Redis only where that may have happened.
        """
        if not (self._lease.in_doubt or self._lease.is_late):
            return set()
        try:
            return self._acks.held_here() - self._lease.renew()
        except (RedisError, OSError):
            return set()  # the connection is about to be found lost, and all with it

    def drop_lost(self) -> None:
        """Let go of what is no longer ours; cheap, as it is called where a batch may leave."""
        lost = self.lost_tags()
        if lost:
            self._acks.let_go(lost)
            self._drop(lost)
