"""
Publisher confirms of many messages, awaited together.

With ``confirm_publish`` kombu awaits each message's confirm before it sends the
next; here a thousand are sent first, on a channel of their own.
"""

from __future__ import annotations

from contextlib import ExitStack
from time import monotonic
from typing import TYPE_CHECKING, Any

from amqp.exceptions import MessageNacked
from kombu.exceptions import OperationalError

from celery_batch.client.publish.buffer import MOST_MESSAGES
from celery_batch.compat.amqp import publish_without_confirms
from celery_batch.compat.kombu import library_errors

if TYPE_CHECKING:
    from celery_batch.client.publish.buffer import BulkWrite
    from celery_batch.client.publish.series import Call

__all__ = ["ConfirmedBulk"]

#: Seconds without any confirm after which a write is given up.
_TIMEOUT = 60.0


class ConfirmedBulk:
    """Messages on one channel, which RabbitMQ confirms by their number to a `BulkWrite`."""

    def __init__(self, app: Any, bulk: BulkWrite) -> None:
        self._bulk = bulk
        self._waiting: dict[int, Any] = {}
        self._count = 0
        self._error: Exception | None = None
        self._returned: set[str] = set()
        with ExitStack() as stack:
            producer = stack.enter_context(app.producer_or_acquire())
            self._connection = producer.connection
            self._channel = stack.enter_context(self._open(app, producer))
            self._producer = app.amqp.Producer(self._channel, auto_declare=False)
            self._stack = stack.pop_all()

    def _open(self, app: Any, producer: Any) -> Any:
        connection, conf = self._connection, app.conf

        def open_channel(channel: Any = None) -> Any:  # noqa: ARG001 (kombu's, once it has reconnected)
            return _open_confirming(connection)

        if conf.task_publish_retry:
            policy = conf.task_publish_retry_policy
            open_channel = connection.ensure(producer, open_channel, **policy)
        with library_errors(connection):
            channel = open_channel()
        publish_without_confirms(channel)  # they come later
        channel.events["basic_ack"].add(self._on_ack)
        channel.events["basic_nack"].add(self._on_nack)
        channel.events["basic_return"].add(self._on_return)
        return channel

    def send(self, call: Call) -> Any:
        """Send one call, and wait for confirms when many are outstanding."""
        # Not again on another connection, where the numbers would begin anew.
        result = call.apply(producer=self._producer, retry=False)
        self._count += 1
        self._waiting[self._count] = result
        if len(self._waiting) >= MOST_MESSAGES:
            self.flush()
        return result

    def flush(self) -> None:
        """Return when all that was sent is confirmed; raise `OperationalError` if not all is."""
        try:
            with library_errors(self._connection):
                self._await_confirms()
        except OperationalError as error:
            self._error = error
        if self._waiting:
            self._error = self._error or OperationalError("the channel was closed")
            self._bulk.unsent += self._waiting.values()
            self._waiting.clear()
        failure, self._error = self._error, None
        if failure is not None:
            self._bulk.failure = failure
            raise failure

    def _await_confirms(self) -> None:
        left, due = len(self._waiting), monotonic() + _TIMEOUT
        while self._waiting and (connection := self._channel.connection) is not None:
            if len(self._waiting) < left:
                left, due = len(self._waiting), monotonic() + _TIMEOUT
            try:
                # Heartbeats are read, too, and confirm nothing.
                connection.blocking_read(max(due - monotonic(), 0.001))
            except TimeoutError as error:
                connection.collect()  # to close the channel in form would be to wait again
                text = f"no confirm within {_TIMEOUT:.0f} seconds"
                raise OperationalError(text) from error

    def close(self) -> None:
        """Close the channel."""
        self._stack.close()

    def _on_ack(self, number: int, multiple: bool) -> None:  # noqa: FBT001 (py-amqp calls so)
        for result in self._take(number, multiple=multiple):
            sent = result.id not in self._returned
            (self._bulk.sent if sent else self._bulk.unsent).append(result)

    def _on_nack(self, number: int, multiple: bool) -> None:  # noqa: FBT001 (the same)
        self._bulk.unsent += self._take(number, multiple=multiple)
        error = OperationalError("RabbitMQ refused the message")
        error.__cause__ = MessageNacked()
        self._error = self._error or error

    def _on_return(self, error: Exception, _exchange: str, _key: str, message: Any) -> None:
        """Note what no queue took; its confirm follows."""
        self._returned.add(message.properties.get("correlation_id"))
        self._error = self._error or OperationalError(str(error))

    def _take(self, number: int, *, multiple: bool) -> list[Any]:
        if not multiple:
            return [self._waiting.pop(number)] if number in self._waiting else []
        numbers = [each for each in self._waiting if each <= number]
        return [self._waiting.pop(each) for each in numbers]


def _open_confirming(connection: Any) -> Any:
    """Open a channel whose messages are confirmed; raise `TimeoutError` if there is no answer."""
    amqp = connection.connect()  # if it is not
    try:
        with amqp.transport.having_timeout(_TIMEOUT):
            channel = connection.channel()
            channel.confirm_select()
    except TimeoutError:
        amqp.collect()
        raise
    return channel
