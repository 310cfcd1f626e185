"""uvicorn's HTTP with an end to its headers, as `webapp.uvicorn_http` makes it."""

from __future__ import annotations

import asyncio
from unittest.mock import MagicMock

import pytest
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState
from web_hostile import request, send

from webapp.uvicorn_http import BoundedHttp

#: Far above the limit of heads, and little enough to be read at once.
LARGE = 180_000


@pytest.fixture(scope="module")
def bounded(servers):
    """A door whose heads are bounded; no worker is behind it."""
    options = ("--no-proxy-headers", "--http", "webapp.uvicorn_http:BoundedHttp")
    with servers.door("fastapi", options=options) as door:
        yield door


def exchanged(app, raw):
    """Return what is written, piece by piece, to a client that sends one request to an app."""
    transport = MagicMock(spec=asyncio.Transport)
    transport.is_closing.return_value = False

    async def run():
        """Have the app answer on one connection."""
        config = Config(app, log_config=None, lifespan="off", access_log=False)
        config.load()
        state = ServerState()
        protocol = BoundedHttp(config, state, {}, asyncio.get_running_loop())
        protocol.connection_made(transport)
        protocol.data_received(raw)
        await asyncio.gather(*state.tasks)
        return [bytes(call.args[0]) for call in transport.write.call_args_list]

    return asyncio.run(run())


def answering(*messages):
    """Return an app that sends these messages of ASGI."""

    async def app(_scope, _receive, send):
        """Send them all."""
        for message in messages:
            await send(message)

    return app


def start(*headers, status=200):
    """Return the message that begins an answer."""
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def body(text, **more):
    """Return a message with a body, or a part of one."""
    return {"type": "http.response.body", "body": text, **more}


GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
TWO = (b"content-length", b"2")


def test_head_and_body_leave_in_one_write():
    """A client is woken once for an answer whose length is known."""
    app = answering(start(TWO, (b"X-Name", b"a: b")), body(b"ok"))

    (written,) = exchanged(app, GET)

    head, _, text = written.partition(b"\r\n\r\n")
    assert b"HTTP/1.1 200 OK" == head.split(b"\r\n")[0]
    assert {b"content-length: 2", b"x-name: a: b"} <= set(head.split(b"\r\n"))
    assert b"ok" == text


@pytest.mark.parametrize(
    ("raw", "messages"),
    [
        (GET, [start(), body(b"o", more_body=True), body(b"k")]),
        (GET, [start(TWO), body(b"o", more_body=True), body(b"k")]),
        (GET, [start(TWO, (b"connection", b"close")), body(b"ok")]),
        (GET.replace(b"1.1", b"1.0"), [start(TWO), body(b"ok")]),
        (GET.replace(b"GET", b"HEAD"), [start(TWO), body(b"")]),
    ],
    ids=["chunked", "in parts", "closing", "old", "head"],
)
def test_what_is_not_usual_is_answered_as_uvicorn_does(raw, messages, monkeypatch):
    """Whatever cannot be written at once comes to the same bytes as without us."""
    app = answering(*messages)
    ours = exchanged(app, raw)
    monkeypatch.setattr("webapp.uvicorn_http._Cycle.send", RequestResponseCycle.send)

    assert exchanged(app, raw) == ours


@pytest.mark.parametrize(
    "header", [(b"x-name", b"a\r\nx-other: b"), (b"x name", b"a")], ids=["value", "name"]
)
def test_a_header_that_is_two_is_never_written(header):
    """What would end a header's line, or is no name, makes an error of the answer."""
    written = b"".join(exchanged(answering(start(TWO, header), body(b"ok")), GET))

    assert b"x-other" not in written
    assert b"ok" not in written


@pytest.mark.parametrize("text", [b"", b"o", b"okay"])
def test_a_body_of_another_length_is_none(text):
    """What is sent is as long as its head says, or the connection is no more of use."""
    written = b"".join(exchanged(answering(start(TWO), body(text)), GET))

    assert b"okay" not in written


def test_an_app_that_fails_before_its_body_is_answered_for():
    """Its head is not out yet, so the client learns of it."""

    async def app(_scope, _receive, send):
        """Begin an answer, and fail."""
        await send(start(TWO))
        raise ValueError("no body")

    assert b"".join(exchanged(app, GET)).startswith(b"HTTP/1.1 500 ")


def test_a_large_body_is_no_long_head():
    """A body counts towards no head, though its last piece is longer than any head may be."""
    transport = MagicMock(spec=asyncio.Transport)
    transport.is_closing.return_value = False
    head = f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {LARGE}\r\n\r\n"

    async def nothing(_scope, _receive, _send):
        """Answer nothing."""

    async def taken():
        """Take a request, its head before its body; return what is said of it."""
        config = Config(nothing, log_config=None, lifespan="off")
        config.load()
        protocol = BoundedHttp(config, ServerState(), {}, asyncio.get_running_loop())
        protocol.connection_made(transport)
        protocol.data_received(head.encode())
        protocol.data_received(b" " * LARGE)
        return transport.write.call_args_list.copy()

    assert [] == asyncio.run(taken())


def test_many_requests_at_once_are_no_long_head(bounded):
    """Requests that come together are counted one by one."""
    ask = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    wire = send(bounded, ask * 3000 + request("GET", "/healthz"))

    assert 3001 == wire.raw.count(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "raw",
    [
        request("GET", "/healthz", A="b" * 100_000),
        request("GET", "/" + "a" * 100_000),
        request("GET", "/healthz", **{f"a{number}": "b" * 50 for number in range(2000)}),
    ],
    ids=["header", "line", "headers"],
)
def test_a_head_without_end_is_refused(bounded, raw):
    """A head that goes on is refused before it is complete, the first or a later one."""
    endless = raw.removesuffix(b"\r\n\r\n")
    later = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" + endless

    assert 431 == send(bounded, endless).status
    assert 1 == send(bounded, later).raw.count(b"HTTP/1.1 431")
