"""On which addresses the web server of `celery batch serve` listens."""

from __future__ import annotations

import socket

import pytest

from celery_batch.serve.sockets import listening
from tests.services.servers.ports import quiet_port


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """Return a free port; any host has two addresses, and one that is not of this machine."""
    port = quiet_port()
    found = [
        (socket.AF_INET, ("127.0.0.1", port)),
        (socket.AF_INET6, ("::1", port, 0, 0)),
        (socket.AF_INET, ("192.0.2.1", port)),  # reserved for documentation
    ]
    answers = [(family, socket.SOCK_STREAM, 6, "", address) for family, address in found]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: answers)
    return port


def test_a_name_is_all_its_addresses(port: int):
    """`localhost` is reached by IPv4 and by IPv6; an address that is missing is left out."""
    listeners = listening("localhost", port)
    try:
        for host in ("127.0.0.1", "::1"):
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            with socket.socket(family) as client:
                client.connect((host, port))
    finally:
        for each in listeners:
            each.close()

    assert 2 == len(listeners)


def test_a_taken_address_is_refused(port: int):
    """Also if only one of two is taken; the other is let go."""
    taken = socket.create_server(("::1", port), family=socket.AF_INET6)
    with taken, pytest.raises(OSError, match="in use"):
        listening("localhost", port)
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_a_host_without_an_address_here_is_refused():
    """A name or an address of another machine is no place to listen."""
    with pytest.raises(OSError, match="assign"):
        listening("192.0.2.1", quiet_port())
