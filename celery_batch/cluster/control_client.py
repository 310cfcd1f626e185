"""A client of Celery's remote control that sends many commands."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from amqp.exceptions import ChannelError
from kombu.utils.url import maybe_sanitize_url

from celery_batch.cluster.state import ClusterSnapshot, runs_batches
from celery_batch.compat.kombu import ask_nodes

__all__ = ["BrokerBlocked", "ControlClient", "impatient_connection", "url_of"]

#: Seconds without an answer after which the broker counts as unreachable.
_TIMEOUT = 3.0

#: Each transport's options that keep it from waiting for ever.
_TIMEOUTS = {
    "redis": dict.fromkeys(("socket_timeout", "socket_connect_timeout"), _TIMEOUT),
    "amqp": {"read_timeout": _TIMEOUT, "write_timeout": _TIMEOUT},
}

_BLOCKED = "RabbitMQ is short of memory or disk, and accepts no messages at the moment"

#: Seconds after which all workers are asked again whether they have batch tasks.
_LOOK_EVERY = 4.0


def impatient_connection(app: Any) -> Any:
    """Return a connection to the broker that gives up after a few seconds; not connected yet."""
    with app.connection_for_write() as connection:  # which does not connect
        timeouts = _TIMEOUTS.get(connection.get_transport_cls().driver_type, {})
    options = {**timeouts, **(app.conf.broker_transport_options or {})}
    return app.connection_for_write(connect_timeout=_TIMEOUT, transport_options=options)


def url_of(connection: Any) -> str:
    """Return a broker's URL without its password; kombu hides one also where there is none."""
    return str(maybe_sanitize_url(connection.as_uri(include_password=True)))


class BrokerBlocked(OSError):
    """The broker accepts no messages at the moment."""


class ControlClient:
    """Sends remote control commands on a connection of its own."""

    def __init__(self, app: Any, mailbox: Any = None) -> None:  # the workers' mailbox unless given
        self._app = app
        self._unbound = mailbox or app.control.mailbox
        self._connection: Any = None
        self._mailbox: Any = None
        #: The workers that have batch tasks, and when to look for them again.
        self._batch_workers: set[str] = set()
        self._look_at = 0.0
        #: Whether RabbitMQ reads nothing more from the connection, as it does in an alarm.
        self._is_blocked = False

    def ask(
        self,
        command: str,
        seconds: float,
        destination: Sequence[str] | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the answers to a command, by worker, within seconds after the last answer."""
        self._connect()
        try:
            answers = ask_nodes(self._mailbox, destination, command, arguments, seconds)
        except Exception as error:
            if self._is_blocked:
                raise BrokerBlocked(_BLOCKED) from error
            raise
        finally:
            self._mailbox.unclaimed.clear()
        if self._is_blocked and not answers:
            raise BrokerBlocked(_BLOCKED)
        return answers

    def stats(self, seconds: float) -> dict[str, Any]:
        """Return the answers of all workers to Celery's ``stats``; note which have batch tasks."""
        answers = self.ask("stats", seconds)
        silent = self._batch_workers - answers.keys()  # until they miss a command of ours, too
        found = {name for name, each in answers.items() if runs_batches(each)}
        self._batch_workers = found | silent
        self._look_at = time.monotonic() + _LOOK_EVERY
        return answers

    def ask_batch_workers(
        self, command: str, seconds: float, arguments: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the answers of the workers that have batch tasks."""
        # Any other would log the command, which it does not know, with a traceback.
        is_due = not self._batch_workers or time.monotonic() >= self._look_at
        answered = self.stats(seconds).keys() if is_due else self._batch_workers
        if not self._batch_workers:
            return {}
        answers = self.ask(command, seconds, sorted(self._batch_workers), arguments)
        self._batch_workers &= answered | answers.keys()
        return answers

    def broadcast(self, command: str, **arguments: Any) -> None:
        """Send the workers a command, and wait for no answer."""
        self._connect()
        self._mailbox.abcast(command, arguments)

    def depths(self, queues: Iterable[str]) -> dict[str, int]:
        """Return how many messages wait in each broker queue."""
        self._connect()
        return {queue: self._depth(queue) for queue in queues}

    def snapshot(self, queues: Iterable[str], seconds: float) -> ClusterSnapshot:
        """Return the statistics of all workers with batch tasks, or why the broker is away."""
        try:
            answers = self.ask_batch_workers("batch_stats", seconds)
            at = time.monotonic()  # and not before a look for workers
            return ClusterSnapshot(time=at, answers=answers, depths=self.depths(queues))
        except Exception as error:  # noqa: BLE001 (whatever the transport raises)
            self.close()
            at = time.monotonic()
            return ClusterSnapshot(time=at, error=str(error) or type(error).__name__)

    def close(self) -> None:
        """Close the connection; the next command opens another."""
        connection, mailbox = self._connection, self._mailbox
        self._connection = self._mailbox = None
        with suppress(Exception):
            # A late reply would otherwise stay in Redis for ever.
            if mailbox is not None and connection.connected:
                connection.default_channel.queue_delete(mailbox.reply_queue.name)
        with suppress(Exception):
            if connection is not None:
                connection.release()

    def _connect(self) -> None:
        if self._connection is None:
            # A connection of its own: from a pool, a broadcast takes two at once.
            self._connection = impatient_connection(self._app)
            self._mailbox = self._unbound(self._connection)
            self._mailbox.producer_pool = None
        self._connection.ensure_connection(max_retries=1, interval_start=0, interval_max=0)
        if self._connection.transport.driver_type == "amqp":
            self._is_blocked = False
            self._connection.connection.on_blocked = self._note_blocked

    def _note_blocked(self, _reason: str) -> None:
        self._is_blocked = True

    def _depth(self, queue: str) -> int:
        with self._connection.channel() as channel:
            try:
                return int(channel.queue_declare(queue, passive=True).message_count)
            except (ChannelError, *self._connection.channel_errors):
                return 0  # it does not exist yet; Redis also drops an empty list
