"""What the web tier says instead of an answer, whichever framework carries it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

__all__ = [
    "RETRY_AFTER",
    "Answer",
    "BrokerUnreachable",
    "DeadlineExceeded",
    "InvalidInput",
    "NoWorker",
    "Refused",
    "TooLarge",
    "UnsupportedMediaType",
    "refusal",
]

#: Seconds after which asking again makes sense: for so long, what is known of the servers is kept.
RETRY_AFTER = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """
    An HTTP answer, before a framework has given it a form.

    Args:
        status: The HTTP status.
        body: What JSON can say.
        headers: Those that the meaning of the answer needs.
    """

    status: int = HTTPStatus.OK
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)


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

    def answer(self) -> Answer:
        """Return what the client is told."""
        return refusal(self.http, type(self).__name__, str(self))


class InvalidInput(Refused):
    """The request is not of the form that the contract asks for."""


class TooLarge(Refused):
    """The request is over a limit."""

    http = HTTPStatus.REQUEST_ENTITY_TOO_LARGE


class UnsupportedMediaType(Refused):
    """The body comes in a form that this route does not read."""

    http = HTTPStatus.UNSUPPORTED_MEDIA_TYPE


class NoWorker(Refused):
    """No worker with a warm model answers."""

    http = HTTPStatus.SERVICE_UNAVAILABLE


class BrokerUnreachable(Refused):
    """The inputs could not be handed to the broker."""

    http = HTTPStatus.SERVICE_UNAVAILABLE


class DeadlineExceeded(Refused):
    """Workers are there, but the outputs did not come in time."""

    http = HTTPStatus.GATEWAY_TIMEOUT
