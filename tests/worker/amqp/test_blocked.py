"""Connections to a RabbitMQ in an alarm, which replies nothing to those that have published."""

from __future__ import annotations

import pytest
from amqp import RecoverableConnectionError
from kombu import Connection

from celery_batch.compat.amqp import end_waits_while_blocked
from tests.services.servers.rabbitmq import RabbitMQServer
from tests.services.shared_setup import eventually


def test_a_blocked_connection_that_ends_awaits_nothing(rabbitmq_server: RabbitMQServer):
    """The first wait ends as RabbitMQ says so, the next at once, until the alarm ends."""
    ending: list[str] = []
    with Connection(rabbitmq_server.url) as connection:
        channel = connection.default_channel
        end_waits_while_blocked(connection.connection, lambda: bool(ending))
        queue = channel.queue_declare("blocked", auto_delete=True).queue
        rabbitmq_server.control("set_vm_memory_high_watermark", "absolute", "1MB")
        ending.append("now")
        try:
            channel.basic_publish(channel.prepare_message(b"one"), "", queue)
            for _ in range(2):
                with pytest.raises(RecoverableConnectionError, match="in an alarm"):
                    channel.queue_declare(queue, passive=True)
        finally:
            rabbitmq_server.control("set_vm_memory_high_watermark", "0.4")
        ending.clear()

        eventually(lambda: channel.basic_get(queue, no_ack=True), "what was sent meanwhile")
