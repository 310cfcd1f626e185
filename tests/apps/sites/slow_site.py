"""A web server that takes its time, and stands still when told to; it writes down each request."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

#: Seconds that an answer takes, as a model's would.
TAKES = 0.02

_BOOK = os.open(os.environ["BOOK"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
#: Requests that come while this file is there get no answer.
_HOLD = Path(os.environ["HOLD"])


def seconds():
    """Return how long the answer takes."""
    return 3600 if _HOLD.exists() else TAKES


async def app(scope, receive, send):
    """Answer any request with its number."""
    number = dict(scope["headers"])[b"x-number"]
    while (await receive())["more_body"]:
        pass
    os.write(_BOOK, number + b"\n")
    await asyncio.sleep(seconds())
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": number})
