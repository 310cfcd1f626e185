"""A running web server, and how tests talk to it."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from celery_batch.cli.child import Child, wait_until

JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@dataclass
class Reply:
    """What came back over HTTP."""

    status: int
    headers: dict[str, str]
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
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            content = json.loads(response.read() or b"null")
            return Reply(response.status, dict(response.getheaders()), content)
        finally:
            connection.close()

    def predict(self, *inputs):
        """POST inputs to /predict as JSON."""
        return self.ask("POST", "/predict", json.dumps({"inputs": inputs}), JSON)

    def form(self, path, *inputs):
        """POST inputs to a path as the repeated form field s."""
        return self.ask("POST", path, urlencode([("s", text) for text in inputs]), FORM)

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
