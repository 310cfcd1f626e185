"""gunicorn's parking worker around a bare app, and how tests talk to it."""

from __future__ import annotations

import http.client
import os
import socket
import sys
from contextlib import contextmanager
from pathlib import Path

from celery_batch.cli.child import Child, wait_until

HERE = Path(__file__).parent
PARKING = ("-k", "webapp.parking.ParkingWorker", "--threads=2")


@contextmanager
def parking_lot(folder, *options):
    """Run `web_parking_app`; what is yielded is its port and its process."""
    path = os.pathsep.join([str(HERE), str(HERE.parents[1])])
    env = {**os.environ, "PYTHONPATH": path, "PARKING_NOTES": str(folder / "notes")}
    (folder / "notes").touch()
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        number, port = listener.fileno(), listener.getsockname()[1]
        line = [sys.executable, "-m", "gunicorn", "--no-control-socket", *PARKING]
        line += ["-c", "python:web_parking_app", f"--bind=fd://{number}", "web_parking_app:app"]
        with Child([*line, *options], folder / "log", env=env, pass_fds=[number]) as child:
            wait_until(lambda: _why_not(port), [child], what="the lot", timeout=60)
            yield port, child


def _why_not(port):
    try:
        return "" if ask(port, "/now")[0] == 200 else "no"
    except OSError as error:
        return repr(error)


def ask(port, path):
    """Return status and body of one request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


@contextmanager
def asked(port, path):
    """Leave one request unread for as long as the block takes."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
        yield client


def noted(notes, line):
    """Return why a line is not among the notes yet, "" when it is."""
    return "" if line in notes.read_text().splitlines() else f"no {line!r}"
