"""What a client has posted, checked."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request

from celery_batch.serve.app import LARGEST_BODY
from celery_batch.serve.refusals import Refusal

__all__ = ["posted_object"]


async def posted_object(request: Request) -> dict[str, Any]:
    """
    Read a request's body, which has to be a JSON object.

    Args:
        request: As it comes.

    Raises:
        Refusal: It is too large (413) or no JSON object (400).
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST_BODY:
            raise Refusal(413, f"the body is larger than {LARGEST_BODY} bytes")
    try:
        posted = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is not JSON: {error}") from error
    if not isinstance(posted, dict):
        raise Refusal(400, f"the body must be a JSON object, not a {type(posted).__name__}")
    return posted
