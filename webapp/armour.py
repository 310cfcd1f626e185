"""The headers that tell browsers how little they may do with an answer."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["Armour"]

#: What an answer is that no page is made of: nothing may be loaded, nobody may frame it.
_NOTHING = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

#: What the page needs: its own files, nothing inline, and pictures that were dropped on it.
_PAGE = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_ALL = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Armour:
    """
    Knows what to say of each path.

    Args:
        hsts: Seconds for which browsers shall use TLS only; 0 to say nothing, as where no
            TLS is in front.
    """

    def __init__(self, hsts: int) -> None:
        strict = {"Strict-Transport-Security": f"max-age={hsts}"} if hsts else {}
        api = {"Content-Security-Policy": _NOTHING, "Cache-Control": "no-store"}
        # Always asked for again, and mostly answered with 304: a new release shows at once.
        page = {"Content-Security-Policy": _PAGE, "Cache-Control": "no-cache"}
        self._api = MappingProxyType(_ALL | strict | api)
        self._page = MappingProxyType(_ALL | strict | page)

    def headers(self, path: str) -> Mapping[str, str]:
        """
        Return what the answer to a request for a path says, unless it knows better.

        Args:
            path: Without the query.
        """
        is_page = path in {"/", "/docs"} or path.startswith("/page/")
        return self._page if is_page else self._api
