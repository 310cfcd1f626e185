"""
Publishes in Redis which batch tasks this worker serves, on which queues.

There is a sorted set for each task on each queue, whose members are workers and whose scores
are the times at which they expire, by the clock of Redis.  A thread renews the entries, as a
model on the solo pool blocks the event loop.  The worker adds its entries when its models
are warm; it removes them when a task is paused, when it is drained, and when it ends.
"""

from __future__ import annotations

import logging
import threading
from itertools import product
from typing import Any
from uuid import uuid4

from redis import Redis

from celery_batch.broker_depth import served_key
from celery_batch.worker.redis.owner import boottime, own_pool
from celery_batch.worker.scheduling.scheduler import Scheduler

__all__ = ["ServedTasksEntry"]

logger = logging.getLogger(__name__)

#: Seconds from one renewal to the next, and until an entry expires.
_RENEW_EVERY, _EXPIRES_AFTER = 4.0, 10.0

#: Seconds between checks whether the served tasks have changed, without a request.
_CHECK_EVERY = 1.0

#: Seconds after which a silent Redis is an error.
_TIMEOUT = 2.0


class ServedTasksEntry:
    """The entries of one worker."""

    def __init__(self, consumer: Any, scheduler: Scheduler) -> None:
        self._consumer = consumer
        self._scheduler = scheduler
        self._member = f"{consumer.hostname} {uuid4().hex}"
        self._client: Redis | None = None
        self._prefix = ""
        #: The keys of the sets that have an entry of this worker.
        self._entered: set[str] = set()
        self._lock = threading.Lock()
        self._renewed_at = float("-inf")
        self._changed, self._ended = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._is_failing = False

    def open(self) -> None:
        """Start on a new connection; other brokers than Redis count their consumers."""
        consumer = self._consumer
        if consumer.connection.transport.driver_type != "redis":
            return
        channel = consumer.task_consumer.channel
        with self._lock:
            self._disconnect()
            self._prefix = channel.global_keyprefix
            self._client = Redis(connection_pool=own_pool(channel, _TIMEOUT))
            self._renewed_at = float("-inf")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="batch-served", daemon=True)
            self._thread.start()
        self.refresh()

    def refresh(self) -> None:
        """Publish a change at once."""
        self._changed.set()

    def close(self) -> None:
        """Remove the entries, and end the thread; a Redis that does not answer is not awaited."""
        self._ended.set()
        self._changed.set()
        if self._thread is not None:
            self._thread.join(2 * _TIMEOUT)
            self._thread = None

    def _run(self) -> None:
        while not self._ended.is_set():
            self._changed.clear()
            served = self._served()
            if served != self._entered or boottime() - self._renewed_at >= _RENEW_EVERY:
                self._publish(served)
            self._changed.wait(_CHECK_EVERY)
        if not self._is_failing:
            self._publish(set())
        with self._lock:
            self._disconnect()

    def _served(self) -> set[str]:
        """Return the keys of all batch tasks on all queues of this worker."""
        consumer = self._consumer
        queues = list(consumer.app.amqp.queues.consume_from)
        tasks = [task_queue.task.name for task_queue in self._scheduler if not task_queue.is_paused]
        return {served_key(queue, task) for queue, task in product(queues, tasks)}

    def _publish(self, keys: set[str]) -> None:
        try:
            with self._lock:
                if self._client is not None:
                    self._write(self._client, keys)
        except Exception as error:  # noqa: BLE001 (no error may end the thread)
            if not self._is_failing:
                logger.warning("Could not publish the served tasks: %s", error)
            self._is_failing = True
        else:
            self._is_failing = False

    def _write(self, client: Redis, keys: set[str]) -> None:
        if not keys and not self._entered:
            return
        seconds, microseconds = client.time()
        now = seconds + microseconds / 1e6
        with client.pipeline(transaction=False) as pipe:
            for key in self._entered - keys:
                pipe.zrem(self._prefix + key, self._member)
            for key in (self._prefix + key for key in keys):
                pipe.zadd(key, {self._member: now + _EXPIRES_AFTER})
                pipe.pexpire(key, int(_EXPIRES_AFTER * 1000))
                pipe.zremrangebyscore(key, "-inf", now)
            pipe.execute()
        self._renewed_at = boottime()
        self._entered = keys

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.connection_pool.disconnect()
