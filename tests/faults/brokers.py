"""The brokers under fire: real servers that keep their data in a folder and can be restarted."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import psutil
import redis
from kombu import Connection

from celery_batch.processes.managed_process import ManagedProcess
from celery_batch.processes.redis_server import RedisServer
from tests.services.servers.ports import quiet_port
from tests.services.servers.rabbitmq import RabbitMQServer

__all__ = ["Broker", "RabbitMQBroker", "RedisBroker"]


class Broker(Protocol):
    """
    What a trial needs of a broker.

    Args:
        conf: Settings that callers and workers share, so that trials do not meet.
        port: Where it listens on TCP.
    """

    conf: dict[str, Any]
    port: int

    def url(self, port: int | None = None) -> str:
        """Return what to give Celery, with another port if a proxy is in between."""

    def left(self) -> int:
        """Return how many messages it still holds, delivered ones included where it knows."""

    def halt(self) -> None:
        """Have the server stop, as an operator would."""

    def kill(self) -> None:
        """Kill the server, unasked and at once."""

    def revive(self) -> None:
        """Start it again on what it has written down."""

    def close(self) -> None:
        """Stop what was started for this trial."""


class RedisBroker:
    """
    A Redis for one trial, which is broker and result backend.

    It writes every command to its append-only file before it answers (``appendfsync
    always``): what it has confirmed outlives it.

    Args:
        folder: Where its data stay from one start to the next.
    """

    def __init__(self, folder: Path) -> None:
        self.conf: dict[str, Any] = {}
        self.port = quiet_port()
        self.server = RedisServer(folder, port=self.port, appendonly=True)
        self.revive()

    def url(self, port: int | None = None) -> str:
        """Return its URL on TCP."""
        return self.server.url.replace(f":{self.port}/", f":{port or self.port}/")

    def connect(self) -> redis.Redis:
        """Return a client on the unix socket, which no proxy breaks."""
        path = str(self.server.directory / "redis.sock")
        return redis.Redis(unix_socket_path=path, password=self.server.password)

    def left(self) -> int:
        """Count the messages in the queue and those delivered but not acknowledged."""
        with self.connect() as client:
            queued = sum(client.llen(key) for key in client.scan_iter("celery*", _type="list"))
            return queued + client.hlen("unacked")

    def halt(self) -> None:
        """Ask the server to stop; return when it has."""
        self.server.stop()

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        _kill_server(self.server.child)

    def revive(self) -> None:
        """Start it and have it write every command down before it answers."""
        self.server.stop()
        self.server.start()
        with self.connect() as client:
            client.config_set("appendfsync", "always")

    def close(self) -> None:
        """Stop the server."""
        self.server.stop()


class RabbitMQBroker:
    """
    A queue of its own for one trial, on a RabbitMQ that trials share.

    Celery's queue is durable and its messages are persistent; callers wait for the
    broker's confirmation, without which "sent" means nothing in AMQP.

    Args:
        server: Running, in a folder that outlives it.
    """

    def __init__(self, server: RabbitMQServer) -> None:
        self.server = server
        self.port = server.port
        self.queue = f"faults-{uuid4().hex}"
        self.conf = {
            "task_default_queue": self.queue,
            "broker_transport_options": {"confirm_publish": True},
        }

    def url(self, port: int | None = None) -> str:
        """Return the server's URL."""
        return self.server.url.replace(f":{self.port}/", f":{port or self.port}/")

    def left(self) -> int:
        """Count the messages in the queue; those that a worker holds are not among them."""
        with Connection(self.server.url) as connection, connection.channel() as channel:
            return int(channel.queue_declare(self.queue, passive=True).message_count)

    def halt(self) -> None:
        """Ask the server to stop; return when it has."""
        self.server.stop()

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        _kill_server(self.server.child)

    def revive(self) -> None:
        """Start the server again."""
        self.server.stop()
        self.server.start()

    def close(self) -> None:
        """Remove the queue."""
        with Connection(self.server.url) as connection, connection.channel() as channel:
            channel.queue_delete(self.queue)


def _kill_server(child: ManagedProcess) -> None:
    for process in psutil.Process(child.pid).children(recursive=True):
        with suppress(ProcessLookupError):  # it ended with the one before
            os.kill(process.pid, signal.SIGKILL)
