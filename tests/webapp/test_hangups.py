"""Clients that go are noticed, and nothing else that they do."""

from __future__ import annotations

import os
import queue
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from webapp.hangups import Hangups, hangups


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection over TCP: the server's end, the client's end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
        with client, server:
            yield server, client


@pytest.fixture
def eye() -> Iterator[Hangups]:
    """Somebody who watches."""
    eye = Hangups()
    yield eye
    eye.close()


def test_a_watch_may_outlive_its_watcher(pair: tuple[socket.socket, socket.socket]) -> None:
    """Where nobody is watched any more, a request ends as ever."""
    eye = Hangups()
    with eye.watch(pair[0].fileno(), print):
        eye.close()

    assert {} == eye._watched


def reset(client: socket.socket) -> None:
    """Close a connection as a client that crashes does."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


@pytest.mark.parametrize(
    "go",
    [socket.socket.close, reset, lambda client: client.shutdown(socket.SHUT_WR)],
    ids=["closed", "reset", "half-closed"],
)
def test_a_client_that_goes_is_noticed_once(
    eye: Hangups, pair: tuple[socket.socket, socket.socket], go: Callable[[socket.socket], None]
) -> None:
    """However a client ends its connection, that is told; also after bytes that nobody reads."""
    server, client = pair
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    with eye.watch(server.fileno(), lambda: told.put("gone")):
        client.sendall(b"GET /next HTTP/1.1\r\n\r\n")
        go(client)

        assert "gone" == told.get(timeout=60)
    assert told.empty()


def test_one_that_had_gone_before_is_noticed(
    eye: Hangups, pair: tuple[socket.socket, socket.socket]
) -> None:
    """A client that has gone before anybody watched is noticed at once."""
    server, client = pair
    client.close()
    select.select([server], [], [], 10)
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    with eye.watch(server.fileno(), lambda: told.put("gone")):
        assert "gone" == told.get(timeout=60)


def test_bytes_and_patience_are_no_hangup(
    eye: Hangups, pair: tuple[socket.socket, socket.socket]
) -> None:
    """A client that sends its next request ahead stays; so does one whose watch has ended."""
    server, client = pair
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        other = socket.create_connection(listener.getsockname())
        here, _ = listener.accept()
        with here:
            with eye.watch(server.fileno(), lambda: told.put("first")):
                client.sendall(b"GET /next HTTP/1.1\r\n\r\n")
                select.select([server], [], [], 10)
            client.close()
            with eye.watch(here.fileno(), lambda: told.put("other")):
                other.close()

                assert "other" == told.get(timeout=60)  # had it told of the first, then before
    assert told.empty()


def test_a_descriptor_is_used_again(eye: Hangups) -> None:
    """A connection with the number of one that went is another."""
    told: queue.SimpleQueue[int] = queue.SimpleQueue()
    for turn in range(100):
        one, two = socket.socketpair()
        with one, eye.watch(one.fileno(), lambda turn=turn: told.put(turn)):
            two.close()
            assert turn == told.get(timeout=60)
    assert told.empty()


def test_a_receiver_that_fails_does_not_end_it(
    eye: Hangups, pair: tuple[socket.socket, socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    """An error in what is called is logged, and others are told."""
    one, two = socket.socketpair()
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    server, client = pair
    with (
        one,
        eye.watch(one.fileno(), lambda: 1 / 0),
        eye.watch(server.fileno(), lambda: told.put("gone")),
    ):
        two.close()
        client.close()

        assert "gone" == told.get(timeout=60)
    assert "could not tell" in caplog.text


def test_what_cannot_be_watched_is_left_alone(eye: Hangups) -> None:
    """A descriptor that is none, or a file's, is no error."""
    with Path(os.devnull).open() as file, eye.watch(None, print), eye.watch(file.fileno(), print):
        assert not eye._watched


def test_a_fork_watches_for_itself(pair: tuple[socket.socket, socket.socket]) -> None:
    """A forked process has a thread and an epoll of its own, and leaves its parent's alone."""
    server, client = pair
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    with hangups().watch(server.fileno(), lambda: told.put("gone")):
        child = os.fork()
        if not child:
            one, two = socket.socketpair()
            heard = threading.Event()
            with hangups().watch(one.fileno(), heard.set):
                two.close()
                os._exit(0 if heard.wait(60) else 1)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        client.close()

        assert 0 == code
        assert "gone" == told.get(timeout=60)


def test_greenlets_go_on_meanwhile(in_python: Callable[..., str]) -> None:
    """In a process that gevent has patched, the watch is a greenlet among others."""
    code = (
        "from gevent import monkey; monkey.patch_all()\n"
        "import gevent, gevent.event, socket, threading\n"
        "from webapp.hangups import hangups\n"
        "one, two = socket.socketpair()\n"
        "heard = gevent.event.Event()\n"
        "ticks = []\n"
        "gevent.spawn(lambda: [(ticks.append(1), gevent.sleep(0.01)) for _ in range(1000)])\n"
        "with hangups().watch(one.fileno(), heard.set):\n"
        "    gevent.sleep(0.1); before = heard.is_set(); two.send(b'next'); gevent.sleep(0.05)\n"
        "    two.close(); print(before, heard.wait(60), len(ticks) > 3)"
    )

    assert "False True True" == in_python(code)
