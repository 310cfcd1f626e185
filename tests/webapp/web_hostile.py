"""How to talk to a door byte by byte."""

from __future__ import annotations

import json
import re
import socket
from dataclasses import dataclass


@dataclass
class Wire:
    """What came back, as it came."""

    raw: bytes

    @property
    def status(self):
        """The status, 0 if there was none."""
        found = re.findall(rb"(?m)^HTTP/1\.[01] (?!100)([0-9]{3})", self.raw)
        return int(found[0]) if found else 0

    @property
    def headers(self):
        """The headers, their names in lower case."""
        lines = self.raw.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")[1:]
        pairs = (line.partition(":") for line in lines)
        return {name.lower(): value.strip() for name, _, value in pairs}

    @property
    def body(self):
        """The body, where it did not come in chunks."""
        return self.raw.partition(b"\r\n\r\n")[2]

    @property
    def error(self):
        """The type of the error that the body tells of."""
        return json.loads(self.body)["error"]["type"]


def send(door, raw, *, finish=False):
    """Send bytes on a connection of their own; return what came back until it closed."""
    with socket.create_connection(("127.0.0.1", door.port), timeout=10) as client:
        try:
            client.sendall(raw)
            if finish:
                client.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it has heard enough; it may have said why
        raw = b""
        try:
            while chunk := client.recv(65536):
                raw += chunk
        except ConnectionResetError:
            pass
        return Wire(raw)


def request(method, path, body=b"", **headers):
    """Return the bytes of a request after which the server closes the connection."""
    named = {"Host": "x", "Connection": "close", "Content-Length": str(len(body))}
    named |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{name}: {value}" for name, value in named.items() if value is not None]
    head = "\r\n".join([f"{method} {path} HTTP/1.1", *lines])
    return head.encode("latin-1") + b"\r\n\r\n" + body
