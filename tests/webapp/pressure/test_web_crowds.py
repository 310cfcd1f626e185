"""Many connections that do nothing, or little at a time."""

from __future__ import annotations

import socket
from contextlib import ExitStack, contextmanager

import pytest
from web_pressed import request


@contextmanager
def crowd(port, count, first=b""):
    """Hold many connections, each of which has sent something."""
    with ExitStack() as open_ones:
        for _ in range(count):
            client = open_ones.enter_context(socket.create_connection(("127.0.0.1", port)))
            client.sendall(first)
        yield


SLOW = {
    "headers": b"POST /predict HTTP/1.1\r\nHost: te",
    "bodies": request("a long one" * 50)[:-100],
    "readers": b"GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n" * 50,
}


@pytest.mark.parametrize("what", SLOW)
@pytest.mark.parametrize(
    "kind",
    [
        "uvicorn",
        pytest.param(
            "gevent", marks=pytest.mark.thorough("web servers under pressure at full size")
        ),
    ],
)
def test_slow_clients_hold_nobody_up(quick, kind, what):
    """Clients that send or read bit by bit, a hundred of them, do not keep others waiting."""
    door = quick.door(kind)
    with crowd(door.port, 100, SLOW[what]):
        assert [200] * 3 == [door.predict(f"quick {number}").status for number in range(3)]


@pytest.mark.parametrize(
    "count",
    [
        500,
        pytest.param(10_000, marks=pytest.mark.thorough("web servers under pressure at full size")),
    ],
)
def test_idle_connections_cost_nobody_anything(quick, count):
    """While very many connections are open and silent, requests are answered."""
    door = quick.door("uvicorn")
    with crowd(door.port, count):
        assert [200] * 3 == [door.predict(f"quick {number}").status for number in range(3)]
