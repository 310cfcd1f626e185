"""Slow workers, no workers, no Redis: how long a client waits and what it hears."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from web_door import timed

from celery_batch.cli.child import wait_until


def received(worker):
    """Wait until a worker has taken a task."""
    log = worker.log
    wait_until(
        lambda: "" if "received" in log.read_text() else "not yet",
        [worker],
        what="the task",
        timeout=60,
    )


def test_a_slow_worker_is_a_gateway_timeout(door):
    """At the deadline, with workers there, the client is told to come back."""
    inputs = ("say lamb [MASK]", "sleep 6 [MASK]")
    reply, took = timed(door.form, "/naive", *inputs, X_Timeout="2.5")

    assert (504, "DeadlineExceeded") == (reply.status, reply.error)
    assert "1 of 2 inputs had no answer within 2.5 s" == reply.body["error"]["message"]
    assert int(reply.headers["Retry-After"]) >= 1
    assert 2.5 <= took < 6


def test_who_is_in_a_hurry_hears_that_it_was_late(door):
    """Where the time is over before anything is sent, that is not the broker's fault."""
    reply = door.predict("say lamb [MASK]", X_Timeout="0.000001")

    assert (504, "DeadlineExceeded") == (reply.status, reply.error)


def test_one_deadline_holds_for_all_inputs(doors):
    """Many slow inputs take no longer to time out than one."""
    reply, took = timed(doors("flask").form, "/stream", *["sleep 1 [MASK]"] * 4, X_Timeout="1")

    assert (504, "DeadlineExceeded") == (reply.status, reply.error)
    assert took < 3.5


def test_nobody_gets_more_time_than_is_set(servers, doors):
    """The setting is what a client gets at most, and what it gets without a word."""
    doors("fastapi")  # for its worker
    with servers.door("fastapi", WEBAPP_TIMEOUT="1") as hasty:
        replies = [
            timed(hasty.predict, "sleep 5 [MASK]"),
            timed(hasty.predict, "sleep 5 [MASK]", X_Timeout="60"),
        ]

    assert [504, 504] == [reply.status for reply, _ in replies]
    assert max(took for _, took in replies) < 5


@pytest.mark.parametrize("kind", ["flask", "flask-parking", "fastapi"])
def test_a_client_in_a_hurry_hears_of_its_own_deadline(servers, kind):
    """Too little time to send, or to learn who is there, says nothing about the servers."""
    with servers.door(kind, STANDIN_QUEUE="nobody") as door:
        replies = [door.predict("say lamb [MASK]", X_Timeout=text) for text in ("1e-9", "0.05")]

    assert [(504, "DeadlineExceeded")] * 2 == [(reply.status, reply.error) for reply in replies]


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf"])
def test_a_deadline_that_is_none_is_refused(doors, text):
    """A timeout that is no number of seconds is the client's mistake, not the default."""
    reply = doors("fastapi").predict("say lamb [MASK]", X_Timeout=text)

    assert (400, "InvalidInput") == (reply.status, reply.error)


@pytest.mark.parametrize("kind", ["flask", "flask-parking", "fastapi"])
def test_no_worker_is_service_unavailable(own_servers, kind):
    """Without a worker both the probe and the client hear so, each in its time."""
    with own_servers.door(kind, WEBAPP_TIMEOUT="1.5") as door:
        ready, ready_took = timed(door.ask, "GET", "/readyz")
        reply, took = timed(door.predict, "say lamb [MASK]")

        assert (503, "NoWorker") == (ready.status, ready.error)
        assert (503, "NoWorker") == (reply.status, reply.error)
        assert reply.headers["Retry-After"] == ready.headers["Retry-After"] == "1"
        assert ready_took < 8
        assert 1.5 <= took < 8  # without the setting, ten
        assert 200 == door.ask("GET", "/healthz").status


@pytest.mark.parametrize("kind", ["flask", "flask-parking", "fastapi"])
def test_probes_keep_no_requests_from_being_sent(servers, doors, kind):
    """However many ask for workers that are not there, others are answered meanwhile."""
    doors(kind)  # for its worker
    with (
        servers.door(kind, WEBAPP_CONTRACT="web_standin:half_served") as door,
        ThreadPoolExecutor(12) as clients,
    ):
        statuses, over = [], threading.Event()
        for _ in range(12):
            clients.submit(ask_until, over, lambda: door.ask("GET", "/readyz").status, statuses)
        try:
            wait_until(
                lambda: "" if statuses else "none yet", [door.child], what="a probe", timeout=60
            )
            reply = door.predict("say lamb [MASK]")
        finally:
            over.set()

    assert (200, {503}) == (reply.status, set(statuses))


def ask_until(over, ask, answers):
    """Ask again and again, until it is over."""
    while not over.is_set():
        answers.append(ask())


@pytest.mark.parametrize("kind", ["flask", "flask-parking", "fastapi"])
def test_what_nobody_waits_for_never_reaches_the_model(own_servers, kind):
    """A worker that comes late discards the inputs of requests that were given up."""
    redis = own_servers.client()
    with own_servers.door(kind, WEBAPP_TIMEOUT="1.5") as door:
        assert 503 == door.predict("say lamb [MASK]", "crash now", "say star [MASK]").status
        task = door.post("/tasks", {"input": "say late [MASK]"}, X_Timeout="0.1").body

        with own_servers.worker() as worker:
            door.until("/readyz")
            assert ["late"] == door.predict("say late [MASK]").body["outputs"]
            wait_until(
                lambda: "" if "succeeded in" in worker.log.read_text() else "not yet",
                [worker],
                what="the line about its success",
                timeout=60,
            )
            log = worker.log.read_text()
            news = door.ask("GET", task["url"])

    assert ("expired", "Expired") == (news.body["state"], news.error)
    assert 4 == log.count("revoked: standin.answer") + log.count("Discarding revoked task")
    assert 1 == log.count("succeeded in")
    assert not redis.exists("standin")


def test_a_cold_worker_is_not_ready(own_servers):
    """A worker whose model is not warm does not make the service ready."""
    with own_servers.worker(STANDIN_COLD="1") as worker, own_servers.door() as door:
        wait_until(
            lambda: "" if " ready." in worker.log.read_text() else "starting",
            [worker],
            what="the cold worker",
            timeout=60,
        )
        reply = door.ask("GET", "/readyz")

    assert (503, "NoWorker") == (reply.status, reply.error)
    assert "standin.answer and standin.answer_one" in reply.body["error"]["message"]


@pytest.mark.parametrize("kind", ["flask", "flask-parking", "fastapi"])
def test_a_broker_that_is_down_is_told_at_once(own_servers, kind):
    """Without Redis nobody waits for the deadline; with Redis back, all is well again."""
    with own_servers.worker(), own_servers.door(kind, ready="/readyz") as door:
        own_servers.redis.stop()
        with ThreadPoolExecutor(32) as clients:
            started = time.monotonic()
            replies = list(clients.map(door.predict, ["say lamb [MASK]"] * 32))
            took = time.monotonic() - started
        wait_until(
            lambda: "" if door.ask("GET", "/readyz").error == "BrokerUnreachable" else "cached",
            [door.child],
            what="the news",
            timeout=60,
        )

        assert {(503, "BrokerUnreachable", "1")} == {
            (reply.status, reply.error, reply.headers["Retry-After"]) for reply in replies
        }
        assert took < 9  # the deadline is ten
        assert 200 == door.ask("GET", "/healthz").status

        own_servers.redis.start()
        door.until("/readyz")
        assert ["lamb"] == door.predict("say lamb [MASK]").body["outputs"]


def test_only_the_broker_is_down(own_servers, servers):
    """With results in another Redis, the broker's absence is told at once as well."""
    url = own_servers.redis.url
    own_servers.redis.stop()
    with servers.door(CELERY_BROKER_URL=url, WEBAPP_TIMEOUT="20") as door:
        ready, ready_took = timed(door.ask, "GET", "/readyz")
        reply, took = timed(door.predict, "say lamb [MASK]")

    assert (503, "BrokerUnreachable") == (ready.status, ready.error)
    assert (503, "BrokerUnreachable") == (reply.status, reply.error)
    assert max(took, ready_took) < 10


@pytest.mark.parametrize("kind", ["flask", "flask-parking", "fastapi"])
def test_a_broker_that_hangs_does_not_hang_the_clients(own_servers, kind):
    """A Redis that takes connections and never answers costs seconds, not minutes."""
    with own_servers.worker(), own_servers.door(kind, ready="/readyz", WEBAPP_TIMEOUT="3") as door:
        process = own_servers.client().info("server")["process_id"]
        os.kill(process, signal.SIGSTOP)
        try:
            with ThreadPoolExecutor(16) as clients:
                replies = list(clients.map(timed, [door.predict] * 16, ["say lamb [MASK]"] * 16))
            # Once one has tried in vain, the next are not kept waiting.
            after, after_took = timed(door.predict, "say lamb [MASK]")
            ready, ready_took = timed(door.ask, "GET", "/readyz")
        finally:
            os.kill(process, signal.SIGCONT)

        assert {503} == {reply.status for reply, _ in replies}
        assert max(took for _, took in replies) < 30
        assert 503 == after.status
        assert after_took < 3  # the deadline
        assert (503, "BrokerUnreachable") == (ready.status, ready.error)
        assert ready_took < 10

        # Who has just met a broker that is away asks it again only a moment later.
        answered = {"outputs": ["lamb"]}
        said = lambda: door.predict("say lamb [MASK]").body  # noqa: E731
        wait_until(
            lambda: "" if said() == answered else "no answer",
            [door.child],
            what="an answer after Redis goes on",
            timeout=60,
        )


@pytest.mark.parametrize("kind", ["flask", "flask-parking", "fastapi"])
def test_an_answer_survives_a_restart_of_redis(own_servers, kind):
    """A message that is lost with the connection is made up for by looking."""
    with (
        own_servers.worker() as worker,
        own_servers.door(kind, ready="/readyz") as door,
        ThreadPoolExecutor(1) as clients,
    ):
        reply = clients.submit(door.predict, "sleep 2 [MASK]")
        received(worker)
        own_servers.redis.stop()
        own_servers.redis.start()

        assert (200, {"outputs": ["2"]}) == (reply.result().status, reply.result().body)


@pytest.mark.parametrize("kind", ["flask", "flask-parking", "fastapi"])
def test_a_request_in_flight_is_finished_before_the_door_stops(own_servers, kind):
    """On SIGTERM gunicorn lets the request that waits have its answer."""
    with (
        own_servers.worker() as worker,
        own_servers.door(kind, ready="/readyz") as door,
        ThreadPoolExecutor(1) as clients,
    ):
        reply = clients.submit(door.predict, "sleep 1 [MASK]")
        received(worker)
        door.child.stop()

        assert (200, {"outputs": ["1"]}) == (reply.result().status, reply.result().body)
