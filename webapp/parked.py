"""
What a WSGI server and a door agree on, so that a request may wait without a thread.

WSGI knows one way to wait: not to return.  A server that offers more says so in the
environ; a door may then return a `Parked` for a body, and its server has the answer made on
an event loop, while the thread goes on with other requests.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

from webapp.messages import Answer

__all__ = ["OFFER", "Parked", "parks"]

#: Where a server's offer is in a request's environ.
OFFER = "webapp.parks"

#: Headers that a framework's own, empty response has, and that mean nothing here.
_OF_THE_BODY = ("content-type", "content-length")


class Parked:
    """
    The body of an answer that nobody knows yet; its status and headers come with it.

    Args:
        answering: Makes the answer; called and awaited on an event loop, and so is its body
            iterated over where that comes bit by bit.
        close: Called in a thread when the request has ended, as of any WSGI body.
        headers: What the framework says besides, such as a cookie; what the answer says itself
            comes before it.
    """

    __slots__ = ("answering", "close", "headers")

    def __init__(
        self,
        answering: Callable[[], Awaitable[Answer]],
        close: Callable[[], object] = lambda: None,
        headers: Iterable[tuple[str, str]] = (),
    ) -> None:
        self.answering = answering
        self.close = close
        self.headers = [each for each in headers if each[0].lower() not in _OF_THE_BODY]

    def headers_of(self, answer: Answer) -> list[tuple[str, str]]:
        """
        Return all that an answer's head says.

        Args:
            answer: The answer.
        """
        own = [*answer.headers.items()]
        if not self.headers:
            return own
        said = {name.lower() for name in answer.headers}
        return own + [each for each in self.headers if each[0].lower() not in said]

    def __iter__(self) -> Iterator[bytes]:
        """
        Refuse to be sent as if it were known.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            "a parked answer has no body yet: what stands between the app and its server must"
            f" hand it on as it is, or take {OFFER!r} out of the environ"
        )


def parks(environ: Mapping[str, Any]) -> bool:
    """
    Say whether a request's server takes a `Parked`.

    Args:
        environ: WSGI's.
    """
    return bool(environ.get(OFFER))
