"""
Which request a thread, a greenlet or a coroutine works for.

The name of a request comes from its client, if that has a harmless one, and goes out with
the answer, with every line of the log, and with the tasks as their header `request_id`.
"""

from __future__ import annotations

import os
import re
from contextvars import ContextVar, Token

__all__ = ["HEADER", "NONE", "current", "enter", "leave", "request_id"]

#: The header, in and out.
HEADER = "X-Request-ID"

#: What a line of the log says that belongs to no request.
NONE = "-"

#: What neither a log, nor a header, nor a shell can misread; longer than any customary form.
_HARMLESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=@-]{0,127}").fullmatch

_current: ContextVar[str] = ContextVar("webapp_request_id", default=NONE)


def request_id(given: str | None) -> str:
    """
    Return what a request is called.

    Args:
        given: What its client calls it; kept if that is harmless.
    """
    return given if given and _HARMLESS(given) else os.urandom(16).hex()


def current() -> str:
    """Return the name of the request that is being answered here, or ``-``."""
    return _current.get()


def enter(name: str) -> Token[str]:
    """Note which request is answered here from now on; return what `leave` needs."""
    return _current.set(name)


def leave(token: Token[str]) -> None:
    """Note that the request is answered."""
    try:
        _current.reset(token)
    except ValueError:
        # A stream that was begun in one context and is closed in another.
        _current.set(NONE)
