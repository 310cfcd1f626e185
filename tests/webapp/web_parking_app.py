"""A bare WSGI app that parks what it is asked to, and hooks that note what they are told."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

from webapp.messages import Answer, Stream
from webapp.parked import Parked

#: Bytes that no socket's buffers hold.
LARGE = 32 * 2**20

#: How long some take.
SECONDS = {"/wait": 3600, "/soon": 1}

#: What was noted, a line each.
NOTES = Path(os.environ.get("PARKING_NOTES", os.devnull))


def note(line):
    """Append a line to the notes."""
    with NOTES.open("a") as notes:
        notes.write(f"{line}\n")


def post_worker_init(worker):
    """Have a process note when it leaves connections to others."""
    enable = worker.set_accept_enabled

    def noting(enabled):
        if not enabled:
            note("rest")
        enable(enabled)

    worker.set_accept_enabled = noting


def post_request(_worker, req, _environ, resp):
    """Note, as gunicorn's hook, what a request was answered with."""
    note(f"hook {req.path} {resp.status}")


async def answered(path):
    """Answer as the path says."""
    if path == "/fail":
        raise LookupError("as asked for")
    if path == "/exit":
        raise SystemExit(3)
    if path == "/cancel":
        raise asyncio.CancelledError
    if path in SECONDS:
        await asyncio.sleep(SECONDS[path])
    if path.startswith("/stream"):
        return Answer(body=Stream(told(path)))
    body = bytes(LARGE) if path == "/large" else threading.current_thread().name.encode()
    return Answer(body=body, headers={"Content-Length": str(len(body))})


async def told(path):
    """Say something, and after that what the path asks for."""
    try:
        yield "first\n"
        if path == "/stream":
            yield "last\n"
        elif path == "/stream/fails":
            raise LookupError("as asked for")
        elif path == "/stream/large":
            yield "x" * LARGE
        else:
            await asyncio.sleep(3600)
    finally:
        note(f"ended {path}")


def broken():
    """Begin an answer and do not end it."""
    yield b"so far so good"
    raise LookupError("as asked for")


def app(environ, start_response):
    """Park a request, but for those that want the thread's name, or half an answer, at once."""
    path = environ["PATH_INFO"]
    if path == "/broken":
        start_response("200 OK", [("Content-Length", "1000")])
        return broken()
    if path != "/now":
        return Parked(lambda: answered(path), lambda: note(f"closed {path}"), [("X-More", path)])
    name = threading.current_thread().name.encode()
    start_response("200 OK", [("Content-Length", str(len(name)))])
    return [name]
