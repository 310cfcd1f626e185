"""uvicorn's HTTP with an end to its headers, as `webapp.uvicorn_http` makes it."""

from __future__ import annotations

import asyncio
from unittest.mock import MagicMock

import pytest
from uvicorn import Config
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
