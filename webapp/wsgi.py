"""What WSGI apps share: from an environ to an `Ask`, and to its answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache, partial
from typing import Any

from webapp.bodies import DRAINS, MOST_DRAINED, too_large
from webapp.contract import Contract
from webapp.errors import InvalidInput, Refused
from webapp.messages import Answer, Ask
from webapp.parked import Parked, parks
from webapp.routes import Routes

__all__ = ["answer_to", "ask_of", "head_of"]

log = logging.getLogger(__name__)

#: More than the length of any body has.
_DIGITS = 18

#: Bytes of a refused body that are read away at once.
_PIECE = 65_536


def answer_to(environ: dict[str, Any], contract: Contract) -> Answer | Parked:
    """
    Return the answer to a request; parked, if it will wait and its server has a place for that.

    Args:
        environ: WSGI's.
        contract: What is answered.
    """
    if not environ.get("wsgi.multithread") and "gunicorn.socket" in environ:
        _say_that_nothing_batches()
    ask = ask_of(environ, contract.routes)
    if parks(environ) and contract.routes.waits(ask.method, ask.path):
        return Parked(partial(_answered, contract, ask))
    return contract.answer(ask)


async def _answered(contract: Contract, ask: Ask) -> Answer:
    """Answer where no framework is left to say that something has failed."""
    try:
        return await contract.aanswer(ask)
    except Exception:
        log.exception("answering %s %r", ask.method, ask.path)
        return contract.failed(ask)


def ask_of(environ: dict[str, Any], routes: Routes) -> Ask:
    """
    Read a request, its body no further than one byte beyond the limit.

    Args:
        environ: WSGI's.
        routes: They know the limits.
    """
    method, path = environ["REQUEST_METHOD"], _utf8(environ.get("PATH_INFO", ""))
    headers = {
        name[5:].replace("_", "-").lower(): value
        for name, value in environ.items()
        if name.startswith("HTTP_")
    }
    if kind := environ.get("CONTENT_TYPE"):
        headers["content-type"] = kind
    body, flaw = _body(environ, routes.limit(method, path))
    return Ask(
        method=method,
        path=path,
        query=environ.get("QUERY_STRING", ""),
        headers=headers,
        body=body,
        client=environ.get("REMOTE_ADDR", ""),
        root=_utf8(environ.get("SCRIPT_NAME", "")),
        connection=_connection(environ),
        flaw=flaw,
    )


def head_of(environ: Mapping[str, Any]) -> Ask:
    """
    Return as much of a request as its refusal needs.

    Args:
        environ: WSGI's, or Django's likeness of it.
    """
    return Ask(
        method=environ["REQUEST_METHOD"],
        path=_utf8(environ.get("PATH_INFO", "")),
        headers={"x-request-id": environ.get("HTTP_X_REQUEST_ID", "")},
        client=environ.get("REMOTE_ADDR", ""),
    )


@cache
def _say_that_nothing_batches() -> None:
    log.warning(
        "this process serves one request at a time, so models get batches of one: serve with"
        " gunicorn -k webapp.parking.ParkingWorker --threads=64, or with --threads=64 alone"
    )


def _connection(environ: dict[str, Any]) -> int | None:
    """Return the descriptor of a request's connection, where the server says which it is."""
    found = environ.get("gunicorn.socket")
    return None if found is None else found.fileno()


def _body(environ: dict[str, Any], limit: int) -> tuple[bytes, Refused | None]:
    """Return what came of a body, and what is wrong where it is not worth a look."""
    length = environ.get("CONTENT_LENGTH") or ""
    if not length and "HTTP_TRANSFER_ENCODING" not in environ:
        return b"", None
    # A body sent in chunks has no length, and servers end the stream where it ends.
    wanted = limit + 1 if len(length) > _DIGITS or not length.isdecimal() else int(length)
    if length and wanted > limit:
        _drain(environ)
        return b"", too_large(limit)
    try:
        content: bytes = environ["wsgi.input"].read(wanted)
    except Exception:  # noqa: BLE001 (each server has errors of its own for it)
        return b"", _torn()
    if len(content) > limit:
        _drain(environ)
    return content, _torn() if length and len(content) < wanted else None


def _drain(environ: Mapping[str, Any]) -> None:
    """Read away some of a body that is refused, where its server says on which socket it comes."""
    connection = environ.get("gunicorn.socket")
    if connection is None:
        return  # who says that more will come may never send it
    until, left, before = time.monotonic() + DRAINS, MOST_DRAINED, connection.gettimeout()
    with suppress(Exception):  # each server has errors of its own for a client that has gone
        while left > 0 and (seconds := until - time.monotonic()) > 0:
            connection.settimeout(seconds)
            piece = environ["wsgi.input"].read(min(left, _PIECE))
            left = left - len(piece) if piece else 0
    with suppress(OSError):
        connection.settimeout(before)


def _torn() -> InvalidInput:
    return InvalidInput("the body does not end where its length, or its chunks, say")


def _utf8(path: str) -> str:
    """Return a path as it was meant; some frameworks have read it that way already."""
    try:
        return path if path.isascii() else path.encode("latin-1").decode()
    except UnicodeError:
        return path
