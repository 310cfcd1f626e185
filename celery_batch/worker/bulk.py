"""The bulk message path: many messages in one round trip, on Redis and RabbitMQ."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from celery import bootsteps
from celery.utils.functional import noop
from celery.worker.consumer.consumer import STOP_CONDITIONS
from celery.worker.state import maybe_shutdown
from redis.exceptions import NoPermissionError, OutOfMemoryError, ReadOnlyError, ResponseError

from celery_batch.compat.amqp import end_waits_while_blocked
from celery_batch.compat.celery import check_before_processing, on_eta
from celery_batch.compat.fast_paths import FastPaths, PathState
from celery_batch.compat.kombu import missing_for_acks, missing_for_fetch, open_channels
from celery_batch.compat.kombu_redis import declare_while_full
from celery_batch.config import Settings
from celery_batch.worker.amqp.acks import AmqpAcks
from celery_batch.worker.amqp.reader import read_together
from celery_batch.worker.dispatch.running_messages import RunningMessages
from celery_batch.worker.intake.validation import MessageValidator
from celery_batch.worker.redis.acks import RedisAcks
from celery_batch.worker.redis.fetch import BulkFetch, record_single_messages
from celery_batch.worker.redis.lease import Lease
from celery_batch.worker.redis.scripts import lacks_command
from celery_batch.worker.scheduling.prefetch import OrdinaryLimit
from celery_batch.worker.scheduling.scheduler import Scheduler

__all__ = ["BulkPath"]

logger = logging.getLogger(__name__)

_FULL = (
    "Redis is full (maxmemory): it refuses calls and results until it has more memory, for which"
    " this worker waits"
)

#: Seconds after which a queue is bound that a full Redis did not bind.
_BIND_AFTER = 1.0


class BulkPath:
    """The bulk message path of one consumer, over its connections."""

    def __init__(self, consumer: Any, scheduler: Scheduler, validator: MessageValidator) -> None:
        self._consumer = consumer
        self._scheduler = scheduler
        self._validator = validator
        #: Whether this connection's messages are read in bulk.
        self.reads = False
        self._paths = FastPaths.of(consumer.app)
        #: Of the paths that are not on for this connection: why.
        self._why_off: dict[str, str] = {}
        self._opened = ExitStack()
        self._fetch: BulkFetch | None = None
        self._ordinary: OrdinaryLimit | None = None
        on_eta(consumer, self._count)
        check_before_processing(consumer.controller, self._was_taken_over)
        #: Delivery tags whose acknowledgements could not be sent.
        self._unsent: list[str] = []
        self._last_owner: str | None = None
        self._has_left = False
        self._connect = consumer.connection_for_read
        consumer.connection_for_read = self._connect_for_read
        # What a full Redis refuses, or one that was demoted, is tried again on a new connection.
        consumer.connection_errors += (OutOfMemoryError, ReadOnlyError)
        self._is_full = False

    def open(self) -> None:
        """Make the new connection's channel bulk, if it is one that we know."""
        connection, self._why_off = self._consumer.connection, {}
        if not self._consumer.hub:
            self._why_off = dict.fromkeys(self._names, "there is no event loop")
        elif self._driver == "amqp":
            self._open_amqp(connection.connection)
        elif self._driver == "redis" and self._paths.is_on("acknowledge"):
            self._open_redis(self._consumer.task_consumer.channel)

    def states(self) -> list[PathState]:
        """Return which of the fast paths that a broker of this kind can have are on."""
        why_off = self._why_off
        return [
            PathState(name, self._paths.state(name).reason or why_off.get(name, ""))
            for name in self._names
        ]

    @property
    def _names(self) -> tuple[str, ...]:
        by_driver = {"redis": ("fetch", "acknowledge"), "amqp": ("amqp_frames", "acknowledge")}
        return by_driver.get(self._driver, ())

    @property
    def _driver(self) -> str:
        return str(self._consumer.connection.transport.driver_type)

    def _open_amqp(self, connection: Any) -> None:
        if self._paths.is_on("amqp_frames"):
            reason = read_together(connection, self._scheduler)
            self._why_off["amqp_frames"] = reason
            self.reads = not reason
        end_waits_while_blocked(connection, self._is_ending)
        events = getattr(self._consumer.event_dispatcher, "connection", None)
        if events is not None:
            end_waits_while_blocked(events.connection, self._is_ending)
        if self._paths.is_on("acknowledge"):
            self._scheduler.running_messages = AmqpAcks(self._consumer, self._scheduler)

    def _is_ending(self) -> bool:
        return self._consumer.blueprint.state in STOP_CONDITIONS

    def _open_redis(self, channel: Any) -> None:
        vars(channel.qos).pop("restore_visible", None)
        if missing := missing_for_acks(channel):
            self._paths.turn_off("acknowledge", missing)
            return
        if missing := missing_for_fetch(channel):
            self._paths.turn_off("fetch", missing)
        try:
            lease = self._take_lease(channel)
        except NoPermissionError as error:
            logger.warning("Redis does not allow scripts (%s): no bulk path, no lease", error)
            self._why_off = dict.fromkeys(self._names, "Redis does not allow scripts")
            return
        scheduler = self._scheduler
        ordinary = self._ordinary = OrdinaryLimit(self._consumer, scheduler)
        acks = RedisAcks(channel, self._consumer, scheduler, lease, self._unsent, ordinary)
        scheduler.running_messages = acks
        self._opened.callback(acks.end)
        # First acknowledge what has ended, so that it is not given back; then give back what
        # the last connection held, if that connection could not do so itself.
        acks.flush()
        if self._last_owner is not None:
            lease.restorer.restore_own(self._last_owner)
        self._last_owner = lease.keys.owner
        self.reads = self._paths.is_on("fetch") and self._can_fetch(lease)
        acks.fetches_per_task = self.reads
        if self.reads:
            self._fetch = BulkFetch(
                channel, self._consumer.hub, lease, scheduler, self._validator, ordinary
            )
            self._opened.callback(self._fetch.close)
        else:
            record_single_messages(channel, lease)

    def _can_fetch(self, lease: Lease) -> bool:
        """Return whether Redis runs what fetching needs: else a script may fail with messages."""
        client, key = lease.client, lease.keys.alive
        commands: dict[str, Callable[[], Any]] = {
            "BLMOVE": partial(client.blmove, key, key, 1),
            "RPOP": partial(client.rpop, key),
            "ZCARD": partial(client.zcard, key),
            "LINDEX": partial(client.lindex, key, -1),
        }
        for name, run in commands.items():
            try:
                run()
            except ResponseError as error:  # the key is no list
                if lacks_command(error):
                    logger.warning(
                        "this Redis has no %s (%s): messages are read one by one", name, error
                    )
                    self._why_off["fetch"] = f"this Redis has no {name}"
                    return False
        return True

    def close(self) -> None:
        """End the bulk path of a connection that is lost."""
        self._scheduler.running_messages = RunningMessages()
        self._opened.close()
        self._fetch, self._ordinary, self.reads = None, None, False

    def _count(self, request: Any) -> None:
        """Count the message of an ordinary task whose ETA has come against the prefetch."""
        if self._ordinary is not None:
            self._ordinary.eta_has_come(request.message.delivery_tag)

    def _was_taken_over(self, request: Any) -> bool:
        return self._scheduler.running_messages.was_taken_over(request)

    def flush(self) -> None:
        """Fetch no more, and send the last acknowledgements."""
        if self._fetch is not None:
            self._fetch.close()
        self._scheduler.running_messages.flush()

    def _connect_for_read(self, *args: Any, **kwargs: Any) -> Any:
        """Connect so that consuming can begin on a full Redis, without kombu restoring messages."""
        connection = self._connect(*args, **kwargs)
        if connection.transport.driver_type != "redis":
            return connection
        self._is_full = False
        declare_while_full(connection, self._bind_later)
        if self._consumer.hub and self._paths.is_on("acknowledge"):
            for channel in open_channels(connection):
                channel.qos.restore_visible = noop  # by this host's clock, before ours
        return connection

    def _bind_later(self, bind: Callable[[], object]) -> None:
        """Bind a queue in a moment, as a full Redis has refused it."""
        if not self._is_full:
            self._is_full = True
            logger.warning(_FULL)
        if self._consumer.hub:
            self._consumer.hub.call_later(_BIND_AFTER, bind)

    def _take_lease(self, channel: Any) -> Lease:
        consumer = self._consumer
        lease = Lease(channel, consumer.hostname, Settings.of(consumer.app).lease)
        self._opened.callback(lease.end)
        lease.on_shutdown_without_redis = self._scheduler.kill_running
        lease.before_refusal = self._leave_retries
        lease.open()
        return lease

    def _leave_retries(self) -> None:
        """Shut down at once, unless that has begun: Celery tries some commands again for ever."""
        on_main = threading.current_thread() is threading.main_thread()
        if on_main and self._consumer.blueprint.state == bootsteps.RUN and not self._has_left:
            self._has_left = True
            maybe_shutdown()
