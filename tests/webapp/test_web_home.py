"""The page's routes through every door, and an open stream when a server is told to stop."""

from __future__ import annotations

import http.client
import json
from unittest.mock import Mock

import pytest
from celery import Celery
from web_door import KINDS

from webapp.closing import Closing
from webapp.home import Home
from webapp.messages import Ask


@pytest.fixture(params=KINDS)
def home(request, servers):
    """Each of the doors, with nobody behind it."""
    environ = {"PAGE_SERVICE": "nobody", "WEBAPP_CONTRACT": "web_page_tasks:contract"}
    with servers.door(request.param, **environ) as door:
        yield door


def get(door, path, **headers):
    """GET a path; return its status, headers and body."""
    connection = http.client.HTTPConnection("127.0.0.1", door.port, timeout=30)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        known = {name.lower(): value for name, value in response.getheaders()}
        return response.status, known, response.read()
    finally:
        connection.close()


def test_the_page_and_its_stream(home):
    """Every door hands out the files, tells what goes on, and stops with a stream open."""
    status, headers, body = get(home, "/")
    script = get(home, "/page/main.js")
    again = get(home, "/page/main.js", **{"If-None-Match": script[1]["etag"]})
    missing = get(home, "/page/..%2fcontract.py")
    connection = http.client.HTTPConnection("127.0.0.1", home.port, timeout=30)
    connection.request("GET", "/live")
    stream = connection.getresponse()
    lines = iter(stream.readline, b"")
    events = [next(line for line in lines if line.startswith(b"data: ")) for _ in range(2)]
    home.child.stop(grace=15)
    rest = stream.read()  # raises where the stream was cut off
    connection.close()

    assert (200, "text/html; charset=utf-8") == (status, headers["content-type"])
    assert body.startswith(b"<!doctype html>")
    assert "script-src 'self'" in headers["content-security-policy"]
    assert (200, "text/javascript; charset=utf-8") == (script[0], script[1]["content-type"])
    assert (304, b"") == (again[0], again[2])
    assert 404 == missing[0]
    assert "text/event-stream; charset=utf-8" == stream.headers["Content-Type"]
    assert [True, True] == [json.loads(event[6:])["reached"] for event in events]
    assert rest.count(b"data: ") < 8


def test_who_is_refused_says_nothing_of_how_long_answers_take():
    """Refusals come at once, and would make a server that refuses look quick."""
    home = Home(Celery("unused"), [], 1, Closing(), board=Mock())
    for path, status, seconds in [
        ("/predict", 200, 0.5),
        ("/stream", 504, 1.0),
        ("/predict", 429, 0.001),
        ("/predict", 503, 0.001),
        ("/tasks", 202, 0.002),
    ]:
        home.observe(Ask(method="POST", path=path), status, seconds)
    latency = home._latencies.summary()

    assert (2, 0.5, 1.0) == (latency["requests"], latency["p50"], latency["p99"])
