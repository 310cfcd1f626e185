"""The proxy breaks what it is asked to break, and nothing else."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from threading import Thread

import pytest

from tests.faults.proxy import Proxy

REPLY = b"x" * 10_000


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """A proxy in front of a server that answers whatever it hears with a long reply."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        Thread(target=_serve, args=(server,), daemon=True).start()
        with Proxy(server.getsockname()[1]) as proxy:
            yield proxy


def _serve(server: socket.socket) -> None:
    while True:
        try:
            client, _ = server.accept()
        except OSError:
            return
        Thread(target=_answer, args=(client,), daemon=True).start()


def _answer(client: socket.socket) -> None:
    with client:
        while client.recv(1024):
            client.sendall(REPLY)


def _ask(client: socket.socket) -> bytes:
    """Ask once; return what comes back before the reply or the connection ends."""
    heard = b""
    try:
        client.sendall(b"?")
        while len(heard) < len(REPLY) and (data := client.recv(65536)):
            heard += data
    except ConnectionError:
        pass
    return heard


def _connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=5)


def test_replies_pass(proxy: Proxy):
    """Nothing is changed on the way."""
    with _connect(proxy) as client:
        assert _ask(client) == REPLY


def test_reply_is_cut(proxy: Proxy):
    """A connection that is cut ends after a part of a reply."""
    with _connect(proxy) as client:
        _ask(client)
        cutting = Thread(target=proxy.tell, args=("cut", 7))
        cutting.start()
        replies = [_ask(client)]
        while replies[-1] == REPLY:  # the command is still on its way
            replies.append(_ask(client))
        cutting.join()

        assert len(replies[-1]) < len(REPLY)


def test_new_connections_survive_a_cut(proxy: Proxy):
    """Who connects after a cut is served."""
    proxy.tell("cut", 7)
    with _connect(proxy) as client:
        assert _ask(client) == REPLY


def test_refused_until_accepted(proxy: Proxy):
    """A proxy that refuses looks like a server that is away, and can come back."""
    proxy.tell("refuse")
    with pytest.raises(ConnectionRefusedError):
        _connect(proxy)
    proxy.tell("accept")

    with _connect(proxy) as client:
        assert _ask(client) == REPLY
