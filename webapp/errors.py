"""What the web tier says instead of an answer, whichever framework carries it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from math import ceil
from types import MappingProxyType
from typing import Any

from webapp.messages import Answer

__all__ = [
    "RETRY_AFTER",
    "BrokerUnreachable",
    "ClientGone",
    "CrossSite",
    "DeadlineExceeded",
    "HeadersTooLarge",
    "InvalidInput",
    "MethodNotAllowed",
    "Misdirected",
    "NoWorker",
    "NotFound",
    "Overloaded",
    "Refused",
    "TooLarge",
    "TooManyAtOnce",
    "TooManyRequests",
    "Unauthorized",
    "UnreadablePicture",
    "UnsupportedMediaType",
    "refusal",
]

#: Seconds after which asking again makes sense: for so long, what is known of the servers is kept.
RETRY_AFTER = 1


def refusal(
    status: int, kind: str, message: str, *, headers: Mapping[str, str] | None = None, **more: Any
) -> Answer:
    """
    Return the answer that every refused request gets.

    Args:
        status: The HTTP status; with 429, 503 and 504 comes the time to ask again.
        kind: What is wrong, in one word for programs.
        message: What is wrong, for people.
        headers: Further headers.
        more: Further fields of the body.
    """
    body = {"error": {"type": kind, "message": message}, **more}
    all_headers = dict(headers or {})
    if status in {429, 503, 504}:
        all_headers.setdefault("Retry-After", str(RETRY_AFTER))
    return Answer(status=status, body=body, headers=all_headers)


class Refused(Exception):
    """The request gets no outputs; the message says why, in words for the client."""

    http: int = HTTPStatus.BAD_REQUEST

    #: What the client's program needs to do better.
    headers: Mapping[str, str] = MappingProxyType({})

    def answer(self) -> Answer:
        """Return what the client is told."""
        return refusal(self.http, type(self).__name__, str(self), headers=self.headers)


class InvalidInput(Refused):
    """The request is not of the form that the contract asks for."""


class NotFound(Refused):
    """Nothing is there."""

    http = HTTPStatus.NOT_FOUND


class MethodNotAllowed(Refused):
    """
    Something is there, but not for this method.

    Args:
        message: For the client.
        allowed: The methods that it is for.
    """

    http = HTTPStatus.METHOD_NOT_ALLOWED

    def __init__(self, message: str, allowed: Iterable[str]) -> None:
        super().__init__(message)
        self.headers = {"Allow": ", ".join(sorted(allowed))}


class HeadersTooLarge(Refused):
    """The request has too many headers."""

    http = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE


class TooLarge(Refused):
    """The request is over a limit."""

    http = HTTPStatus.REQUEST_ENTITY_TOO_LARGE


class UnsupportedMediaType(Refused):
    """The body comes in a form that this route does not read."""

    http = HTTPStatus.UNSUPPORTED_MEDIA_TYPE


class UnreadablePicture(Refused):
    """A picture comes in a known form, but cannot be read."""

    http = HTTPStatus.UNPROCESSABLE_ENTITY


class NoWorker(Refused):
    """No worker with a warm model answers."""

    http = HTTPStatus.SERVICE_UNAVAILABLE


class BrokerUnreachable(Refused):
    """The inputs could not be handed to the broker."""

    http = HTTPStatus.SERVICE_UNAVAILABLE


class DeadlineExceeded(Refused):
    """Workers are there, but the outputs did not come in time."""

    http = HTTPStatus.GATEWAY_TIMEOUT


class Unauthorized(Refused):
    """
    The request brings no key that is known.

    Args:
        message: For people.
        known: False where it brings one that is not known.
    """

    http = HTTPStatus.UNAUTHORIZED

    def __init__(self, message: str, *, known: bool = True) -> None:
        super().__init__(message)
        error = "" if known else ', error="invalid_token"'
        self.headers = {"WWW-Authenticate": f'Bearer realm="webapp"{error}'}


class CrossSite(Refused):
    """A browser sends this for another site's page, which is not allowed to."""

    http = HTTPStatus.FORBIDDEN


class Misdirected(Refused):
    """The request is for a host that this is not."""

    http = HTTPStatus.MISDIRECTED_REQUEST


class TooManyAtOnce(Refused):
    """The client has too many requests in hand."""

    http = HTTPStatus.TOO_MANY_REQUESTS


class TooManyRequests(Refused):
    """
    The client has sent too many requests in this stretch of time.

    Args:
        message: For people.
        headers: When to come again, and what the limits are.
    """

    http = HTTPStatus.TOO_MANY_REQUESTS

    def __init__(self, message: str, headers: Mapping[str, str]) -> None:
        super().__init__(message)
        self.headers = headers


class Overloaded(Refused):
    """
    As many inputs wait already as may wait.

    Args:
        message: For the client.
        retry_after: Seconds after which there may be room.
    """

    http = HTTPStatus.TOO_MANY_REQUESTS

    def __init__(self, message: str, retry_after: float = RETRY_AFTER) -> None:
        super().__init__(message)
        self.headers = {"Retry-After": str(max(RETRY_AFTER, ceil(retry_after)))}


class ClientGone(Refused):
    """The client has closed its connection, or its half of it, before it had its answer."""

    #: Nginx's; there is no standard one, since as a rule nobody reads it.
    http = 499
