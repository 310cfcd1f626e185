"""
What a handle is given: ``{"task_id": str, "task_info": dict}``, as a message carries it.

A large body travels as it was posted, and the worker parses it: JSON keeps the interpreter
to itself meanwhile, on whatever thread, and the web server has others to answer.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from celery_batch.errors import MessageRefused

__all__ = ["is_large", "object_in", "opened", "sealed"]

#: Bytes of a body that the web server does not parse; those below take it 1 ms at most.
_LARGE = 1 << 16

#: Where an envelope has a body that nobody has parsed, in place of ``task_info``.
_BODY = "task_body"


def is_large(body: bytes | bytearray) -> bool:
    """Say whether a body is left to the worker to parse."""
    return len(body) > _LARGE


def object_in(body: bytes | bytearray) -> dict[str, Any]:
    """
    Return the JSON object that a client has posted.

    Raises:
        MessageRefused: The body is none.
    """
    try:
        posted = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MessageRefused(f"the body is not JSON: {error}") from error
    if not isinstance(posted, dict):
        raise MessageRefused(f"the body must be a JSON object, not a {type(posted).__name__}")
    return posted


def sealed(task_id: str, posted: dict[str, Any] | bytes) -> dict[str, Any]:
    """
    Return the envelope of a request.

    Args:
        task_id: Its task's id.
        posted: The object, or a body that nobody has parsed.
    """
    if isinstance(posted, bytes):
        return {"task_id": task_id, _BODY: base64.b64encode(posted).decode()}
    return {"task_id": task_id, "task_info": posted}


def opened(envelope: dict[str, Any]) -> dict[str, Any]:
    """
    Return an envelope as its handle is given it.

    Raises:
        MessageRefused: What was posted is no JSON object.
    """
    if _BODY not in envelope:
        return envelope
    posted = object_in(base64.b64decode(envelope[_BODY]))
    return {"task_id": envelope["task_id"], "task_info": posted}
