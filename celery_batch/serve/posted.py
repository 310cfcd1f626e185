"""What a client has posted, checked."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from celery_batch.errors import MessageRefused
from celery_batch.serve.app import LARGEST_BODY
from celery_batch.serve.envelope import is_large, object_in
from celery_batch.serve.refusals import Refusal

__all__ = ["posted_object"]


async def posted_object(request: Request) -> dict[str, Any] | bytes:
    """
    Read a request's body, which has to be a JSON object.

    Args:
        request: As it comes.

    Returns:
        The object; of a large one the body, which nobody has parsed.

    Raises:
        Refusal: It is too large (413) or no JSON object (400).
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST_BODY:
            raise Refusal(413, f"the body is larger than {LARGEST_BODY} bytes")
    if is_large(body):
        return bytes(body)
    try:
        return object_in(body)
    except MessageRefused as error:
        raise Refusal(error.http, str(error)) from error
