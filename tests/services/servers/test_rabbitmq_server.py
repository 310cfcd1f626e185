"""The RabbitMQ of the tests: what is kept over a restart, and that nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from kombu import Connection

from celery_batch.errors import ConfigurationError
from tests.services.servers.rabbitmq import RabbitMQServer, find_rabbitmq_server


@pytest.mark.thorough("a RabbitMQ restarted on its folder")
def test_durable_queues_survive_a_restart_on_the_same_folder(tmp_path: Path, rabbitmq_server):
    """Stopping and starting again keeps messages, and leaves no process behind."""
    server = RabbitMQServer(tmp_path / "broker")
    with server:
        _send(server, "kept")
        keepers = [psutil.Process(each.pid) for each in (server.child, server._epmd)]
        family = [child for keeper in keepers for child in keeper.children(recursive=True)]
    left = [process for process in family if _runs(process)]
    with server:
        received = _receive(server)

    assert "kept" == received
    assert [] == left
    assert rabbitmq_server.port != server.port


def test_a_temporary_folder_goes_with_its_server(rabbitmq_server):
    """The shared server has a folder of its own while it runs, and listens on loopback only."""
    process = psutil.Process(rabbitmq_server.child.pid).children()[0]
    listening = {each.laddr.ip for each in process.net_connections() if each.status == "LISTEN"}

    assert rabbitmq_server.directory.is_dir()
    assert {"127.0.0.1"} == listening


def test_a_program_that_is_not_there_is_named(monkeypatch):
    """A wrong ``$RABBITMQ_SERVER`` is an error that names it, not a fallback to another one."""
    monkeypatch.setenv("RABBITMQ_SERVER", "/nowhere/rabbitmq-server")

    with pytest.raises(ConfigurationError, match="/nowhere/rabbitmq-server"):
        find_rabbitmq_server()


def _runs(process):
    """Say whether it does anything; a container may have nobody to bury the dead."""
    try:
        return process.status() not in ("zombie", "dead", "terminated")
    except psutil.NoSuchProcess:
        return False


def _send(server, text):
    with Connection(server.url) as connection:
        queue = connection.SimpleQueue("durable")
        queue.put(text)
        queue.close()


def _receive(server):
    with Connection(server.url) as connection:
        queue = connection.SimpleQueue("durable")
        message = queue.get(timeout=60)
        message.ack()
        queue.close()
        return message.payload
