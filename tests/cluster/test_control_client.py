"""Remote control commands where the broker hangs, is unknown, or no worker answers."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import closing, contextmanager, suppress

import pytest
from celery import Celery

from celery_batch.backfill.control import Jobs
from celery_batch.checks.collect import broker_of, results_of, workers_of
from celery_batch.cluster import control_client as module
from celery_batch.cluster.control_client import ControlClient, url_of
from tests.services.shared_setup import eventually


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


class Nodes:
    """Nodes of an app that answer ``stats`` and other commands; no worker, but the same words."""

    def __init__(self, app):
        self._app = app
        #: The answers of each node by command, and what it waits for before it gives one.
        self.answers, self.gates = {}, {}
        #: What each node was asked.
        self.asked = []

    @contextmanager
    def up(self, name, **answers):
        """Have a node that gives these answers."""
        self.answers[name], self.gates[name] = answers, threading.Event()
        self.gates[name].set()
        ready, stop = threading.Event(), threading.Event()
        thread = threading.Thread(target=self._serve, args=(name, ready, stop))
        thread.start()
        try:
            assert ready.wait(30)
            yield
        finally:
            stop.set()
            thread.join()

    def _serve(self, name, ready, stop):
        def handler(command):
            def handle(_state=None, **_):
                self.asked.append((name, command))
                self.gates[name].wait(60)
                return self.answers[name].get(command, {"error": "KeyError"})

            return handle

        commands = ("stats", "batch_stats")
        with self._app.connection_for_write() as connection, connection.channel() as channel:
            handlers = {command: handler(command) for command in commands}
            mailbox = self._app.control.mailbox(connection)
            node = mailbox.Node(name, channel=channel, handlers=handlers)
            with node.listen(channel=channel):
                while not stop.is_set():
                    with suppress(TimeoutError):
                        connection.drain_events(timeout=0.05)
                    ready.set()  # Redis subscribes with the first wait


OURS = {"stats": {"batches": {}}, "batch_stats": {"tasks": {}}}


@pytest.fixture(params=["setup", "rabbit_setup"], ids=["redis", "rabbitmq"])
def nodes(request):
    """Nodes on a real broker, and a client that asks them."""
    url = request.getfixturevalue(request.param).url
    app = Celery("nodes", broker=url, set_as_current=False)
    with closing(ControlClient(app)) as client:
        yield Nodes(app), client


def test_only_workers_with_batch_tasks_hear_our_commands(nodes, monkeypatch):
    """Another one would log a traceback; a new one is found soon, one that is gone is left out."""
    nodes, client = nodes
    monkeypatch.setattr(module, "_LOOK_EVERY", 0.5)
    # On a busy machine an answer may come too late for one look.
    until = lambda *names: eventually(  # noqa: E731
        lambda: [*names] == sorted(client.snapshot([], 0.5).answers), f"answers of {names}"
    )
    with nodes.up("stock", stats={"pool": {}}):
        assert not client.snapshot([], 0.5).answers
        with nodes.up("ours", **OURS):
            until("ours")
            with nodes.up("new", **OURS):
                until("new", "ours")
        until()

    assert ("stock", "batch_stats") not in nodes.asked
    assert ("ours", "batch_stats") in nodes.asked


def test_a_frame_waits_for_no_other_answer(nodes, monkeypatch):
    """Between two looks for workers it has what it wants as soon as all have answered."""
    nodes, client = nodes
    monkeypatch.setattr(module, "_LOOK_EVERY", 600.0)
    with nodes.up("one", **OURS), nodes.up("two", **OURS):
        eventually(lambda: len(client.stats(0.5)) == 2, "both workers")
        began = time.monotonic()
        answers = client.ask_batch_workers("batch_stats", 60.0)
        seconds = time.monotonic() - began

    assert ["one", "two"] == sorted(answers)
    assert seconds < 50


def test_a_late_answer_costs_no_other(nodes):
    """It belongs to an earlier question, and is not counted among the answers to this one."""
    nodes, client = nodes
    with nodes.up("late", **OURS), nodes.up("quick", **OURS):
        eventually(lambda: len(client.stats(0.5)) == 2, "both workers")
        nodes.gates["late"].clear()
        # On a busy machine the quick one may be late, too.
        eventually(
            lambda: ["quick"] == [*client.ask_batch_workers("batch_stats", 1.0)], "an answer"
        )
        nodes.gates["late"].set()
        both = client.ask_batch_workers("batch_stats", 30.0)

    assert ["late", "quick"] == sorted(both)


def test_a_worker_that_is_busy_at_a_look_is_still_asked(nodes):
    """It has batch tasks, as far as is known, until it misses both commands of one look."""
    nodes, client = nodes
    with nodes.up("ours", **OURS):
        eventually(lambda: client.stats(0.5), "the worker")
        nodes.gates["ours"].clear()
        client.stats(0.2)
        nodes.gates["ours"].set()

        assert ["ours"] == [*client.ask_batch_workers("batch_stats", 30.0)]


@pytest.mark.parametrize("user", ["", "shop:**@", ":**@"])
def test_a_url_has_asterisks_in_place_of_a_password_only(user: str):
    """Where there is no password, asterisks would say that one is sent."""
    broker = f"redis://{user.replace('**', 'secret')}localhost:6379/0"
    with Celery(broker=broker, set_as_current=False).connection() as connection:
        assert f"redis://{user}localhost:6379/0" == url_of(connection)
