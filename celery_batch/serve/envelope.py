"""
The argument of a handle: ``{"task_id": str, "task_info": dict}``, as a message carries it.

A large body is sent as it was posted, and the worker parses it: JSON holds the interpreter's
lock meanwhile, on any thread, and would block the web server's other requests.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from celery_batch.errors import MessageRefused
from celery_batch.formatting import with_article

__all__ = ["is_large", "object_in", "opened", "sealed"]

#: Bytes of a body above which the web server does not parse it; smaller ones take 1 ms at most.
_LARGE = 1 << 16

#: The key of an envelope with a body that is not parsed, in place of ``task_info``.
_BODY = "task_body"


def is_large(body: bytes | bytearray) -> bool:
    """Say whether a body is left to the worker to parse."""
    return len(body) > _LARGE


def object_in(body: bytes | bytearray) -> dict[str, Any]:
    """Return the JSON object that a client posted."""
    try:
        posted = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MessageRefused(f"the body is not JSON: {error}") from error
    if not isinstance(posted, dict):
        kind = with_article(type(posted).__name__)
        raise MessageRefused(f"the body must be a JSON object, not {kind}")
    return posted


def sealed(task_id: str, posted: dict[str, Any] | bytes) -> dict[str, Any]:
    """Return the envelope of a request: of an object, or of a body that is not parsed."""
    if isinstance(posted, bytes):
        return {"task_id": task_id, _BODY: base64.b64encode(posted).decode()}
    return {"task_id": task_id, "task_info": posted}


def opened(envelope: dict[str, Any]) -> dict[str, Any]:
    """Return an envelope as its handle takes it."""
    if _BODY not in envelope:
        return envelope
    posted = object_in(base64.b64decode(envelope[_BODY]))
    return {"task_id": envelope["task_id"], "task_info": posted}
