"""One request on its way through gunicorn's threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from http import HTTPStatus
from typing import Any

from gunicorn.http import wsgi

from webapp.messages import Answer
from webapp.parked import OFFER, Parked

__all__ = ["Turn"]

#: The last is nginx's, for a client that has closed its half of the connection: it may read.
_GONE = 499
_STATUS = {
    **{each.value: f"{each.value} {each.phrase}" for each in HTTPStatus},
    _GONE: f"{_GONE} Client Closed Request",
}


class Turn:
    """
    What gunicorn's threaded worker does for a request, in two halves.

    A request that is parked has its second half later, in whichever thread; of all others
    the first is the whole.

    Args:
        worker: gunicorn's.
        req: The request.
        conn: Its connection.
        is_last: Whether the connection is closed after it.
    """

    def __init__(self, worker: Any, req: Any, conn: Any, *, is_last: bool) -> None:
        self._worker = worker
        self.req = req
        self._since = time.monotonic()
        self._resp, self._environ = wsgi.create(
            req, conn.sock, conn.client, conn.server, worker.cfg
        )
        self._environ["wsgi.multithread"] = True
        self._environ[OFFER] = True
        if is_last:
            self._resp.force_close()
        #: What the app has returned, if it is that.
        self.parked: Parked | None = None

    def begin(self) -> bool | None:
        """
        Ask the app, and send what it answers.

        Returns:
            Whether the connection may have another request; None if this one is parked.

        Raises:
            StopIteration: The answer broke off in its middle, so the connection is closed.
            Exception: It has failed before anything was sent.
        """
        return self._minding(self._ask)

    def end(self, made: asyncio.Task[Answer]) -> bool | None:
        """
        Send the answer of a request that was parked; return and raise as `begin`.

        Args:
            made: What has come of it; cancelled where its client has gone.
        """
        return self._minding(lambda: self._answer(made))

    def _ask(self) -> bool | None:
        body = self._worker.wsgi(self._environ, self._resp.start_response)
        if isinstance(body, Parked):
            self.parked = body
            return None
        return self._send(body, body)

    def _answer(self, made: asyncio.Task[Answer]) -> bool:
        if not self._worker.alive:
            self._resp.force_close()  # its process has been told to stop meanwhile
        try:
            status, headers, content = _parts(made)
            self._resp.start_response(_STATUS[status], headers)
        except BaseException:
            self._let_go(self.parked)
            raise
        return self._send([content], self.parked)

    def _send(self, chunks: Any, body: Any) -> bool:
        try:
            if isinstance(chunks, self._environ["wsgi.file_wrapper"]):
                self._resp.write_file(chunks)
            else:
                for chunk in chunks:
                    self._resp.write(chunk)
            self._resp.close()
        finally:
            taken = timedelta(seconds=time.monotonic() - self._since)
            self._worker.log.access(self._resp, self.req, self._environ, taken)
            self._let_go(body)
        return not self._resp.should_close()

    def _let_go(self, body: Any) -> None:
        if hasattr(body, "close"):
            body.close()

    def _minding(self, half: Callable[[], bool | None]) -> bool | None:
        keeps: bool | None = False
        try:
            keeps = half()
        except OSError:
            raise  # the client's connection; the worker knows what to make of it
        except Exception:
            if not self._resp.headers_sent:
                raise
            # An error's page would look like more of this answer.
            self._worker.log.exception("Error handling request")
            raise StopIteration from None
        finally:
            if keeps is not None:
                self._call_hook()
        return keeps

    def _call_hook(self) -> None:
        try:
            self._worker.cfg.post_request(self._worker, self.req, self._environ, self._resp)
        except Exception:
            self._worker.log.exception("Exception in post_request hook")


def _parts(made: asyncio.Task[Answer]) -> tuple[int, list[tuple[str, str]], bytes]:
    """Return status, headers and body of what has come of a request."""
    if made.cancelled():
        return _GONE, [("Content-Length", "0")], b""
    answer = made.result()
    return answer.status, [*answer.headers.items()], answer.body
