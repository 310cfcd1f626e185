"""Remote control commands where the broker hangs, is unknown, or no worker answers."""

from __future__ import annotations

import socket
import threading

import pytest
from celery import Celery

from celery_batch.backfill.control import Jobs
from celery_batch.checks.collect import broker_of, results_of, workers_of
from celery_batch.cluster import control_client as module
from celery_batch.cluster.control_client import ControlClient


@pytest.fixture
def silent(monkeypatch):
    """The port of a server that accepts connections and never answers."""
    monkeypatch.setitem(module._TIMEOUTS["redis"], "socket_timeout", 0.2)
    monkeypatch.setitem(module._TIMEOUTS["amqp"], "read_timeout", 0.2)
    monkeypatch.setattr(module, "_TIMEOUT", 0.2)
    taken = []

    def accept():
        while True:
            try:
                taken.append(listener.accept()[0])
            except OSError:  # the test is over
                return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    for connection in taken:
        connection.close()


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_a_broker_that_hangs_is_given_up(silent, scheme):
    """A broker that accepts the connection and never answers is an error after the timeout."""
    app = Celery("silent", broker=f"{scheme}://127.0.0.1:{silent}")
    client = ControlClient(app)
    with pytest.raises(Exception, match=r"(?i)time"):
        client.ask("ping", 0.1)
    client.close()
    with pytest.raises(Exception, match=r"(?i)time"):
        client.broadcast("revoke", task_id=["none"])
    client.close()
    with Jobs(app) as jobs, pytest.raises(Exception, match=r"(?i)time"):
        jobs.all()

    with pytest.raises(Exception, match=r"(?i)time"):
        workers_of(app, set())

    assert "tim" in client.snapshot([], 0.1).error.lower()
    assert "tim" in broker_of(app).error.lower()


def test_unknown_transport_is_an_error_of_the_report():
    """A transport or backend that does not exist is reported like one that does not answer."""
    app = Celery("odd", broker="carrier://pigeon:secret@roof", backend="slate://stone")
    broker, results = broker_of(app), results_of(app)

    assert "carrier" in broker.error
    assert "secret" not in broker.url
    assert "slate" in results.error


def test_redis_without_workers(broker):
    """Without workers there are no answers, and a queue that does not exist is empty."""
    client = ControlClient(Celery("alone", broker=broker))
    answers, depths = client.ask("ping", 0.1), client.depths(["none", "such"])
    client.close()
    client.close()

    assert {} == answers
    assert {"none": 0, "such": 0} == depths
