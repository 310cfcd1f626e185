"""Answers that come bit by bit, of whom none has a thread for itself: on a real server."""

from __future__ import annotations

import http.client
import socket
from contextlib import ExitStack

import pytest
from web_lot import ask, asked, noted, parking_lot

from celery_batch.cli.child import wait_until

#: How HTTP/1.1 says that a stream has come to its end.
END = b"\r\n0\r\n\r\n"


@pytest.fixture(scope="module")
def lot(tmp_path_factory):
    """The port of a server with two threads, and the file of its notes."""
    folder = tmp_path_factory.mktemp("streams")
    with parking_lot(folder) as (port, _):
        yield port, folder / "notes"


def until(client, end):
    """Return what a client is sent up to some bytes, or until its connection is closed."""
    said = b""
    while not said.endswith(end) and (piece := client.recv(65536)):
        said += piece
    return said


def test_more_clients_listen_than_there_are_threads(lot):
    """Each has the beginning of its stream, and others their answers meanwhile."""
    port, _ = lot
    with ExitStack() as listening:
        for _ in range(10):
            client = listening.enter_context(asked(port, "/stream/on"))
            assert until(client, b"first\n\r\n").endswith(b"first\n\r\n")

        assert ask(port, "/now")[0] == 200


def test_a_connection_goes_on_after_a_stream(lot):
    """It is sent in pieces to its end, and the next request comes on the same connection."""
    port, _ = lot
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    said = []
    for _ in range(3):
        connection.request("GET", "/stream")
        said.append(connection.getresponse().read())
        local = connection.sock.getsockname()
    connection.request("GET", "/now")
    connection.getresponse().read()

    assert local == connection.sock.getsockname()
    assert [b"first\nlast\n"] * 3 == said
    connection.close()


def test_an_old_client_is_told_the_end_by_the_connection(lot):
    """HTTP/1.0 knows no pieces."""
    port, _ = lot
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(b"GET /stream HTTP/1.0\r\n\r\n")

        assert until(client, END).endswith(b"\r\n\r\nfirst\nlast\n")


def test_a_stream_that_fails_is_not_ended_as_if_it_were_whole(lot):
    """Its client sees the connection close in the middle, and the hook hears of it."""
    port, notes = lot
    with asked(port, "/stream/fails") as client:
        said = until(client, END)

    assert said.endswith(b"first\n\r\n")
    wait_until(lambda: noted(notes, "closed /stream/fails"), [], what="its end", timeout=30)
    wait_until(lambda: noted(notes, "hook /stream/fails 200 OK"), [], what="a hook", timeout=30)


@pytest.mark.parametrize("path", ["/stream/on", "/stream/large"])
def test_a_stream_whose_client_goes_ends(lot, path):
    """Also where a thread has been writing what the client did not read."""
    port, notes = lot
    with asked(port, path) as client:
        until(client, b"first\n\r\n")

    for line in (f"ended {path}", f"closed {path}"):
        wait_until(lambda line=line: noted(notes, line), [], what=line, timeout=30)
    assert ask(port, "/now")[0] == 200


def test_a_thread_that_writes_in_vain_is_freed(lot):
    """A client that has ended its half of the connection and reads nothing counts as gone."""
    port, notes = lot
    before = notes.read_text().count("closed /stream/large")
    with asked(port, "/stream/large") as client:
        client.shutdown(socket.SHUT_WR)
        wait_until(
            lambda: "" if notes.read_text().count("closed /stream/large") > before else "writing",
            [],
            what="its end",
            timeout=30,
        )
