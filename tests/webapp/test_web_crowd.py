"""One client at a time: who is too many, and that whoever goes makes room."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from web_hostile import request

from celery_batch.cli.child import wait_until

#: Where the stand-in service notes what it is told to.
NOTES = "standin-notes"


@pytest.fixture(scope="module", params=["flask", "flask-parking", "django-asgi", "fastapi"])
def narrow(request, servers, doors):
    """A door that lets a client have one request in hand, with the others' worker behind it."""
    doors(request.param)
    with servers.door(request.param, ready="/readyz", WEBAPP_MAX_CONCURRENT="1") as door:
        yield door


def roomy(door):
    """Wait until a client may ask again."""
    wait_until(
        lambda: "" if door.predict("say a [MASK]").status == 200 else "full",
        [door.child],
        what="room",
        timeout=60,
    )


def test_one_of_two_is_refused_and_may_come_again(narrow):
    """Of two at the same time one is told to come again; the other has its answer."""
    with ThreadPoolExecutor(2) as clients:
        replies = list(clients.map(narrow.predict, ["sleep 2 [MASK]"] * 2))
    answer, refusal = sorted(replies, key=lambda reply: reply.status)

    assert (200, {"outputs": ["2"]}) == (answer.status, answer.body)
    assert (429, "TooManyAtOnce") == (refusal.status, refusal.error)
    assert "1" == refusal.headers["Retry-After"]
    roomy(narrow)


def test_who_goes_makes_room(narrow, servers):
    """A client that hangs up has nothing in hand any more, whatever becomes of its task."""
    redis = servers.client()
    redis.delete(NOTES)
    body = json.dumps({"inputs": ["note here [MASK]", "sleep 2 [MASK]"]}).encode()
    with socket.create_connection(("127.0.0.1", narrow.port)) as client:
        client.sendall(request("POST", "/predict", body, Content_Type="application/json"))
        wait_until(
            lambda: "" if redis.llen(NOTES) else "not yet",
            [narrow.child],
            what="its task",
            timeout=60,
        )
        assert 429 == narrow.predict("say a [MASK]").status
        assert 200 == narrow.ask("GET", "/healthz").status

    roomy(narrow)


def test_a_stream_is_in_hand_while_it_lasts(narrow):
    """Who listens to events has them in hand until they end, or until it goes."""
    with narrow.events(narrow.post("/tasks", {"input": "sleep 1 [MASK]"}).body["events"]) as events:
        assert "queued" == next(events)[0]
        assert 429 == narrow.predict("say a [MASK]").status
        assert "done" == list(events)[-1][0]

    roomy(narrow)
