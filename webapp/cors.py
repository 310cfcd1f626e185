"""
Which other sites' pages may use this service from a browser.

Rule 1: None, unless it is listed; an origin that is not listed is never repeated.
Rule 2: Never credentials: a key travels in a header that the page has to know itself.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from celery_batch.errors import ConfigurationError
from webapp.errors import CrossSite, Misdirected
from webapp.messages import Answer, Ask

__all__ = ["Hosts", "Origins"]

_ORIGIN = re.compile(r"https?://(\[[0-9a-f:]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?").fullmatch

#: What a page may send, and what it may read of an answer, beyond what any page may.
_SENDABLE = "Authorization, Content-Type, Last-Event-ID, Prefer, X-API-Key, X-Request-ID, X-Timeout"
_READABLE = "Location, RateLimit, RateLimit-Policy, Retry-After, X-Request-ID"

#: Seconds for which a browser need not ask again whether it may.
_REMEMBERED = "600"

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class Hosts:
    """
    The names that this service goes by.

    A page may have its own name point here, and then it is no other site any more.

    Args:
        named: As in addresses, ``model.example`` or ``localhost:8000``, with commas or
            spaces between them; without a port any port is meant; empty for any name.
    """

    def __init__(self, named: str) -> None:
        self._named = frozenset(re.split(r"[\s,]+", named.lower().strip())) - {"", "*"}

    def check(self, ask: Ask) -> None:
        """
        Refuse what is meant for somebody else.

        Raises:
            Misdirected: The request's host is not one of these.
        """
        if not self._named:
            return
        host = ask.headers.get("host", "").lower()
        if host not in self._named and re.sub(r":[0-9]*$", "", host) not in self._named:
            raise Misdirected("this service does not go by that name")


class Origins:
    """
    The sites that are listed.

    Args:
        listed: Origins as browsers write them, ``https://example.org``, with commas or
            spaces between them; empty for none.

    Raises:
        ConfigurationError: One is no origin.
    """

    def __init__(self, listed: str) -> None:
        self._listed = frozenset(word for word in re.split(r"[\s,]+", listed) if word)
        for origin in sorted(self._listed):
            if not _ORIGIN(origin):
                raise ConfigurationError(
                    f"WEBAPP_CORS_ORIGINS: {origin!r} is not an origin such as "
                    "https://example.org: in small letters, without a path, without '*'"
                )

    def check(self, ask: Ask) -> None:
        """
        Refuse what a browser sends for another site's page and what changes something.

        A page may send a form anywhere without asking first; a browser says then whose
        page it is.

        Raises:
            CrossSite: That site is not listed.
        """
        site = ask.headers.get("sec-fetch-site", "")
        if site in {"", "same-origin", "none"} or ask.method in _SAFE:
            return
        if ask.headers.get("origin") not in self._listed:
            raise CrossSite("pages of other sites may not send this")

    def preflight(self, ask: Ask, methods: Collection[str]) -> Answer | None:
        """
        Answer a browser that asks whether a page of a listed site may send a request.

        Args:
            ask: Any request.
            methods: What the route at its path takes; nothing where there is no route.

        Returns:
            Nothing where this is no such question, or not about a listed site.
        """
        wanted = ask.headers.get("access-control-request-method")
        if ask.method != "OPTIONS" or not wanted or not methods:
            return None
        if ask.headers.get("origin") not in self._listed:
            return None
        headers = {
            "Access-Control-Allow-Methods": ", ".join(sorted(methods)),
            "Access-Control-Allow-Headers": _SENDABLE,
            "Access-Control-Max-Age": _REMEMBERED,
        }
        return Answer(status=204, body=b"", headers=headers)

    def headers(self, ask: Ask) -> Mapping[str, str]:
        """Return what every answer to a request says about other sites."""
        if not self._listed:
            return {}
        origin = ask.headers.get("origin", "")
        if origin not in self._listed:
            return {"Vary": "Origin"}
        return {
            "Vary": "Origin",
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Expose-Headers": _READABLE,
        }
