"""How connections come to gunicorn's parking worker and go: on real servers."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from contextlib import ExitStack

import gunicorn
import pytest
from gunicorn.config import Config
from web_lot import HERE, PARKING, ask, asked, parking_lot

from celery_batch.cli.child import wait_until
from webapp.parking import ParkingWorker

#: Far less than the 5 s for which gunicorn's own threads wait for a client to begin.
SOON = 4.0


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    """That of a server with two threads."""
    with parking_lot(tmp_path_factory.mktemp("connections")) as (port, _):
        yield port


def seconds_of(port, path):
    """Return how long an answer took, which is no error."""
    began = time.monotonic()
    assert ask(port, path)[0] == 200
    return time.monotonic() - began


def test_connections_on_which_nothing_comes_hold_no_thread(port):
    """More clients than there are threads may say nothing, and others have their answers."""
    with ExitStack() as silent:
        for _ in range(6):
            silent.enter_context(socket.create_connection(("127.0.0.1", port)))

        assert seconds_of(port, "/now") < SOON


def test_clients_that_do_not_close_hold_up_nobody(port):
    """The end of a connection is waited for by nobody who has other things to do."""
    with ExitStack() as lasting:
        for _ in range(6):
            client = lasting.enter_context(socket.create_connection(("127.0.0.1", port)))
            client.sendall(b"GET /now HTTP/1.0\r\n\r\n")
            assert client.recv(65536)

        assert seconds_of(port, "/now") < SOON


def test_what_a_client_sends_too_late_costs_it_no_answer(port):
    """Its connection is closed when it has read all, though it has gone on sending."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(b"GET /now HTTP/1.0\r\n\r\n")
        wait_until(lambda: _why_unanswered(client), [], what="the answer", timeout=30)
        client.sendall(bytes(100_000))
        said = _rest(client)

    assert re.fullmatch(rb"HTTP/1.0 200 OK.*webapp-hand-\d", said, re.DOTALL)


def _why_unanswered(client):
    client.settimeout(0)
    try:
        return "" if client.recv(1, socket.MSG_PEEK) else "closed"
    except BlockingIOError:
        return "nothing yet"
    finally:
        client.settimeout(60)


def _rest(client):
    said = b""
    while piece := client.recv(65536):
        said += piece
    return said


def test_answers_that_broke_off_cost_others_nothing_at_the_end(tmp_path):
    """Told to stop, a server that has closed connections early answers what is parked all the same.

    It says then that this was the last answer on its connection.
    """
    with parking_lot(tmp_path, "--graceful-timeout=30") as (port, child):
        for _ in range(3):
            with asked(port, "/broken") as client:
                _rest(client)
        with asked(port, "/soon") as client:
            ask(port, "/now")  # it is served behind that
            child.stop(grace=30)
            said = _rest(client)

    assert re.match(rb"HTTP/1.1 200 OK\r\n.*Connection: close\r\n", said, re.DOTALL)


def test_clients_that_come_one_by_one_are_not_shared_out(tmp_path):
    """With several processes, each leaves connections to others only when they become more."""
    with parking_lot(tmp_path, "--workers=2") as (port, _):
        for _ in range(60):
            ask(port, "/now")
        rests = (tmp_path / "notes").read_text().splitlines().count("rest")

    assert 0 < rests < 30


def test_gevent_is_refused(tmp_path):
    """Where threads are none, the server says so and ends, whoever has replaced them."""
    pytest.importorskip("gevent")
    (tmp_path / "patched.py").write_text(
        "from gevent import monkey\n\nmonkey.patch_all()\nfrom web_parking_app import app\n"
    )
    path = os.pathsep.join([str(tmp_path), str(HERE), str(HERE.parents[1])])
    line = [sys.executable, "-m", "gunicorn", "--no-control-socket", *PARKING]
    for options in ([], ["--preload"], ["-c", "python:patched"]):
        done = subprocess.run(
            [*line, "--bind=127.0.0.1:0", *options, "patched:app"],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

        assert done.returncode
        assert "serve with -k gevent" in done.stderr


def test_only_the_gunicorn_it_is_made_for_is_served_with(monkeypatch):
    """What it knows of a version's inside may not hold for the next, and then it says so."""
    ParkingWorker.check_config(Config(), None)
    monkeypatch.setattr(gunicorn, "version_info", (28, 0, 0))

    with pytest.raises(RuntimeError, match="install 'gunicorn>=27,<28'"):
        ParkingWorker.check_config(Config(), None)
