"""Sending now and asking later, from every door, whichever process sent the task."""

from __future__ import annotations

import http.client
from contextlib import ExitStack, nullcontext
from unittest.mock import Mock

import pytest
from web_door import KINDS

from celery_batch.cli.child import wait_until
from webapp.closing import Closing
from webapp.errors import BrokerUnreachable
from webapp.messages import Ask
from webapp.outcomes import Outcome
from webapp.routes import Visit
from webapp.settings import Settings
from webapp.straight import straight
from webapp.task_news import News
from webapp.tasks import Tasks
from webapp.thread_way import ThreadWay
from webapp.tickets import Tickets

#: gunicorn's processes as forks of one that has made the app.
PRELOADED = ("--preload", "-cpython:webapp.gunicorn_conf", "--graceful-timeout=60")


def ended(door, url):
    """Wait until a task has ended; return what is told of it."""
    wait_until(lambda: why_not(door, url), [door.child], what="the end", timeout=60)
    return door.ask("GET", url)


def why_not(door, url):
    """Return why a task has not ended yet, "" when it has."""
    state = door.ask("GET", url).body["state"]
    return state if state in ("queued", "started") else ""


def test_a_task_is_sent_and_told_of(door):
    """202 says where the news is, and there they are, with the output at last."""
    sent = door.post("/tasks", {"input": "say lamb [MASK]"})
    url = sent.body["url"]

    assert 202 == sent.status
    assert url == sent.headers["Location"] == f"/tasks/{sent.body['id']}"
    expected = {"id": sent.body["id"], "state": "succeeded", "output": "lamb"}
    assert expected == ended(door, url).body


def test_a_failed_task_says_why(door):
    """Of a task that failed the error is told, as far as it is meant for clients."""
    url = door.post("/tasks", {"input": "no mask"}).body["url"]
    news = ended(door, url).body

    assert "failed" == news["state"]
    assert {"type": "ValueError", "message": "no [MASK] in 'no mask'"} == news["error"]


@pytest.mark.parametrize("path", ["/tasks/{}", "/events/{}"])
def test_an_id_that_was_never_given_out_is_not_found(door, path):
    """Neither nonsense nor a changed id is mistaken for a task that waits."""
    ticket = door.post("/tasks", {"input": "say lamb [MASK]"}).body["id"]
    last = "0" if ticket[-1] != "0" else "1"
    asked = ["nonsense", ticket.partition(".")[0], ticket[:-1] + last, "..", "%C3%BC.1.%C3%BC"]
    replies = [door.ask("GET", path.format(each)) for each in asked]

    assert [(404, "NotFound")] * 5 == [(reply.status, reply.error) for reply in replies]


def test_every_door_knows_the_tasks_of_the_others(doors):
    """An id is good at any web process of the service."""
    url = doors("flask").post("/tasks", {"input": "say lamb [MASK]"}).body["url"]
    ended(doors("flask"), url)
    outputs = {kind: doors(kind).ask("GET", url).body.get("output") for kind in KINDS}

    assert dict.fromkeys(KINDS, "lamb") == outputs


def test_a_queued_task_can_be_taken_back(idle_door):
    """A revoked task is told of as such at once."""
    url = idle_door.post("/tasks", {"input": "say lamb [MASK]"}).body["url"]
    before = idle_door.ask("GET", url).body["state"]
    revoked = idle_door.ask("DELETE", url)
    with idle_door.events(url.replace("tasks", "events")) as events:
        told = [name for name, _ in events]

    assert ("queued", "revoked") == (before, revoked.body["state"])
    assert "Revoked" == idle_door.ask("GET", url).error
    assert ["queued", "done"] == told


def test_to_take_back_what_has_ended_changes_nothing(door):
    """DELETE of a finished task tells how it ended."""
    url = door.post("/tasks", {"input": "say lamb [MASK]"}).body["url"]
    ended(door, url)

    assert "succeeded" == door.ask("DELETE", url).body["state"]


def test_events_tell_the_way_of_a_task(door):
    """Who listens hears that the task is queued, that it has begun, and what came of it."""
    task = door.post("/tasks", {"input": "sleep 0.3 [MASK]"}).body
    with door.events(task["events"]) as events:
        told = list(events)

    assert ("queued", {"id": task["id"]}) == told[0]
    names = [name for name, _ in told if name != "comment"]
    assert ["queued", "started", "done"] == names
    done = {"id": task["id"], "state": "succeeded", "output": "0.3"}
    assert ("done", done) == told[-1]


def test_who_listens_late_hears_the_end_at_once(doors, door):
    """Of a task that has ended the end is told, also by another process."""
    url = doors("fastapi").post("/tasks", {"input": "no mask"}).body["url"]
    ended(doors("fastapi"), url)
    with door.events(url.replace("tasks", "events")) as events:
        told = dict(events)

    assert "failed" == told["done"]["state"]


def test_silence_is_broken(door):
    """While nothing happens a comment keeps proxies from hanging up."""
    task = door.post("/tasks", {"input": "sleep 0.6 [MASK]"}).body
    with door.events(task["events"]) as events:
        told = [name for name, _ in events]

    assert "comment" in told
    assert "done" == told[-1]


@pytest.mark.parametrize("body", [{}, {"input": 3}, {"input": ""}, {"inputs": ["a"]}, []])
def test_a_bad_task_is_refused(door, body):
    """What is no input is not sent."""
    reply = door.post("/tasks", body)

    assert (400, "InvalidInput") == (reply.status, reply.error)


def test_a_late_answer_becomes_a_task(door):
    """Who prefers it gets 202 at the deadline, and the task goes on."""
    wishes = {"X-Timeout": "0.3", "Prefer": "respond-async"}
    reply = door.post("/predict", {"inputs": ["sleep 0.8 [MASK]"]}, **wishes)

    assert 202 == reply.status
    assert reply.body["url"] == reply.headers["Location"]
    assert "0.8" == ended(door, reply.body["url"]).body["output"]


def test_no_time_at_all_is_enough_for_a_task(door):
    """Who prefers a task and has no time to wait gets one all the same."""
    wishes = {"X-Timeout": "0.000001", "Prefer": "respond-async"}
    reply = door.post("/predict", {"inputs": ["sleep 0.5 [MASK]"]}, **wishes)

    assert 202 == reply.status
    assert "0.5" == ended(door, reply.body["url"]).body["output"]


def test_late_answers_become_tasks(doors):
    """Of several inputs each is told of by itself."""
    wishes = {"Prefer": "respond-async, wait=0.3"}
    reply = doors("fastapi").post("/predict", {"inputs": ["sleep 0.6 [MASK]", "no mask"]}, **wishes)
    states = [ended(doors("fastapi"), task["url"]).body["state"] for task in reply.body["tasks"]]

    assert (202, ["succeeded", "failed"]) == (reply.status, states)


def test_an_early_answer_stays_an_answer(doors):
    """The preference alone changes nothing."""
    reply = doors("fastapi").predict("say lamb [MASK]", Prefer="respond-async")

    assert (200, ["lamb"]) == (reply.status, reply.body["outputs"])


@pytest.mark.parametrize(("kind", "seats"), [("flask", 2), ("flask-parking", 4), ("fastapi", 4)])
def test_listeners_leave_threads_to_others(servers, doors, kind, seats):
    """Where each holds a thread so many may listen; others hear how far it is, and come again."""
    doors(kind)  # for its worker
    with servers.door(kind, WEBAPP_EVENT_THREADS="2") as door, ExitStack() as listening:
        url = door.post("/tasks", {"input": "sleep 2 [MASK]"}).body["events"]
        streams = [listening.enter_context(door.events(url)) for _ in range(4)]
        firsts = [next(stream)[0] for stream in streams]
        ends = [[name for name, _ in stream if name == "done"] for stream in streams]
        late = listening.enter_context(door.events(url))

        assert ["queued"] * 4 == firsts
        assert [["done"]] * seats + [[]] * (4 - seats) == ends
        assert ["queued", "done"] == [name for name, _ in late]


@pytest.mark.parametrize(
    ("kind", "options"),
    [("flask", ()), ("flask", PRELOADED), ("flask-parking", PRELOADED), ("fastapi", ())],
)
def test_who_listens_keeps_no_server_from_stopping(servers, kind, options):
    """Told to stop, a server ends the streams of tasks that may wait for long, and cleanly."""
    environ = {"STANDIN_QUEUE": "nobody", "WEBAPP_HEARTBEAT": "60"}
    with servers.door(kind, options=options, **environ) as door:
        path = door.post("/tasks", {"input": "say lamb [MASK]"}).body["events"]
        connection = http.client.HTTPConnection("127.0.0.1", door.port, timeout=30)
        connection.request("GET", path)
        response = connection.getresponse()
        first = response.readline()
        door.child.stop(grace=15)
        rest = response.read()  # which fails where the stream was cut off
        connection.close()

    assert b"event: queued\n" == first
    assert b"event" not in rest


def listened(looks, told, monkeypatch):
    """Return what one hears of a task, from its states at each look, and from its news."""
    task = Mock()
    states = task.AsyncResult.return_value.states
    states.side_effect = map(iter, looks)
    tickets = Tickets("secret", 60)
    ticket = tickets.write("some-id")
    news = [each if isinstance(each, Exception) else News(ticket, *each) for each in told]
    monkeypatch.setattr("webapp.tasks.news_of", Mock(side_effect=news))
    courier = Mock(refusing_when_unreachable=nullcontext)
    visit = Visit(Ask(method="GET", path="/"), ThreadWay(), 0.0, {"id": ticket.text})
    tasks = Tasks(courier, task, tickets, Settings(), Closing())
    words = [each.splitlines()[0] for each in straight(tasks.listen(visit)).body]
    return words, states.call_count


def test_a_state_that_is_gone_is_not_asked_for_in_a_rush(monkeypatch):
    """When nothing is stored of a task any more, its news are waited for anew."""
    told = [("queued",), ("queued",), ("succeeded", Outcome(output="x"))]
    words, looks = listened([[], ["SUCCESS"]], told, monkeypatch)

    assert (["event: queued", "event: done"], 2) == (words, looks)


def test_a_store_that_goes_ends_no_stream(monkeypatch):
    """Whoever listens while the result store is away hears the end when it is back."""
    monkeypatch.setattr("webapp.tasks.RETRY_AFTER", 0.01)
    away = BrokerUnreachable("away")
    told = [("queued",), away, away, ("succeeded", Outcome(output="x"))]
    words, _ = listened([["FAILURE"], [], []], told, monkeypatch)

    assert ["event: queued", ": still here", ": still here", "event: done"] == words


@pytest.mark.parametrize("kind", ["flask", "flask-parking", "fastapi"])
def test_who_listens_hears_of_a_task_that_outlived_redis(own_servers, kind):
    """A stream that is open while Redis ends and begins anew tells of the task to its end."""
    with own_servers.door(kind) as door:
        task = door.post("/tasks", {"input": "say lamb [MASK]"}).body
        with door.events(task["events"]) as events:
            first = next(events)
            own_servers.redis.stop()
            silence = [next(events)[0] for _ in range(3)]
            own_servers.redis.start()
            with own_servers.worker():
                told = [name for name, _ in events if name != "comment"]

    assert ("queued", ["comment"] * 3) == (first[0], silence)
    assert "done" == told[-1]
