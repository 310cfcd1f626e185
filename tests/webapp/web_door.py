"""A running web server, and how tests talk to it."""

from __future__ import annotations

import http.client
import json
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from celery_batch.cli.child import Child, wait_until

JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}

#: Every app on the servers that it is for, synchronous and asynchronous.
KINDS = (
    "flask", "flask-parking", "flask-gevent", "django", "django-parking", "django-asgi", "fastapi",
)  # fmt: skip

_GUNICORN = ("-m", "gunicorn", "--no-control-socket", "--graceful-timeout=3")
#: Fewer threads than many a test has requests that wait.
_PARKING = (*_GUNICORN, "-k", "webapp.parking.ParkingWorker", "--threads=4")
_UVICORN = ("-m", "uvicorn", "--log-level=warning", "--timeout-graceful-shutdown=3")

#: Their command lines, but for the socket.
COMMANDS = {
    "flask": [*_GUNICORN, "--threads=16", "webapp.flask_app:app"],
    "flask-parking": [*_PARKING, "webapp.flask_app:app"],
    "flask-gevent": [*_GUNICORN, "-kgevent", "webapp.flask_app:app"],
    "django": [*_GUNICORN, "--threads=16", "webapp.django_app.wsgi"],
    "django-parking": [*_PARKING, "webapp.django_app.wsgi"],
    "django-asgi": [*_UVICORN, "--lifespan=off", "webapp.django_app.asgi:application"],
    "fastapi": [*_UVICORN, "webapp.asgi_app:app"],
}


def command(kind, number):
    """Return the arguments that start an app on a listening socket."""
    bind = f"--bind=fd://{number}" if "gunicorn" in COMMANDS[kind] else f"--fd={number}"
    return [*COMMANDS[kind], bind]


@dataclass
class Reply:
    """What came back over HTTP."""

    status: int
    headers: http.client.HTTPMessage
    body: Any

    @property
    def error(self):
        """The type of the error that the body tells of, if it does."""
        return self.body.get("error", {}).get("type") if isinstance(self.body, dict) else None


@dataclass
class Door:
    """A running web server, and a way to ask it."""

    port: int
    child: Child

    def ask(self, method, path, body=None, headers=None):
        """Send one request; the reply's body is read as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=90)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            content = json.loads(response.read() or b"null")
            return Reply(response.status, response.headers, content)
        finally:
            connection.close()

    def predict(self, *inputs, **headers):
        """POST inputs to /predict as JSON; headers by their names, with _ for -."""
        return self.post("/predict", {"inputs": inputs}, **headers)

    def post(self, path, document, **headers):
        """POST a document as JSON; headers by their names, with _ for -."""
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.ask("POST", path, json.dumps(document), {**JSON, **more})

    def form(self, path, *inputs, **headers):
        """POST inputs to a path as the repeated form field s."""
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        body = urlencode([("s", text) for text in inputs])
        return self.ask("POST", path, body, {**FORM, **more})

    @contextmanager
    def events(self, path):
        """Open a stream of events; what is yielded gives name and data of each in turn."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=90)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            assert (200, "text/event-stream; charset=utf-8") == (
                response.status,
                response.headers["Content-Type"],
            )
            yield _events(response)
        finally:
            connection.close()

    def why_not(self, path):
        """Return why a path does not answer 200 yet, "" when it does."""
        try:
            reply = self.ask("GET", path)
        except OSError as error:
            return repr(error)
        return "" if reply.status == 200 else f"{reply.status} {reply.body}"

    def until(self, path):
        """Wait until a path answers 200."""
        wait_until(lambda: self.why_not(path), [self.child], what=path, timeout=60)


def _events(response):
    name = None
    for line in response:
        text = line.decode().rstrip("\n")
        if text.startswith(":"):
            yield "comment", text
        elif text.startswith("event: "):
            name = text.removeprefix("event: ")
        elif text.startswith("data: "):
            yield name, json.loads(text.removeprefix("data: "))


def timed(call, *arguments, **more):
    """Return the reply to a call, and how many seconds it took."""
    started = time.monotonic()
    reply = call(*arguments, **more)
    return reply, time.monotonic() - started
