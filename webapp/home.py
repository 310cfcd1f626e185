"""The routes for people: the page, its files, and the stream that its charts are drawn from."""

from __future__ import annotations

from collections.abc import Collection
from http import HTTPStatus
from typing import Any

from celery import Celery

from webapp.board import Board
from webapp.closing import Closing
from webapp.fleet import Fleet
from webapp.latencies import Latencies
from webapp.live import Live
from webapp.messages import Answer, Ask
from webapp.routes import Route, Visit
from webapp.shelf import Shelf

__all__ = ["Home"]

_STREAM = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    # nginx would otherwise keep the events until they fill its buffer.
    "X-Accel-Buffering": "no",
}

#: Who asks here waits for a model.
_ASKING = frozenset({"/naive", "/pictures", "/predict", "/stream"})

#: What those are answered who have waited for it; who is refused hears so at once.
_WAITED = frozenset(
    {
        HTTPStatus.OK,
        HTTPStatus.ACCEPTED,
        HTTPStatus.UNPROCESSABLE_ENTITY,
        HTTPStatus.INTERNAL_SERVER_ERROR,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)


class Home:
    """
    What a browser is shown.

    Args:
        app: The Celery app whose workers are watched.
        tasks: The names of the tasks that they are watched for.
        threads: Viewers that may hold a thread of the server each at the same time.
        closing: Ends the streams.
        board: Tells of backfills.
    """

    def __init__(
        self, app: Celery, tasks: Collection[str], threads: int, closing: Closing, *, board: Board
    ) -> None:
        self._shelf = Shelf()
        self._fleet = Fleet(app, tasks)
        self._latencies = Latencies()
        self._board = board
        self._live = Live(self._look, rest=self._rest, threads=threads)
        self._closing = closing
        closing.then(self._live.stop)

    def routes(self) -> list[Route]:
        """Return these routes."""
        return [
            Route("GET", "/", self.page),
            Route("GET", "/page/{name}", self.file),
            Route("GET", "/live", self.live, waits=True),
        ]

    def observe(self, ask: Ask, status: int, seconds: float) -> None:
        """
        Note how long an answer took, for the charts, if a model was waited for.

        Args:
            ask: The request.
            status: Of its answer.
            seconds: From its arrival to its answer.
        """
        if ask.path in _ASKING and status in _WAITED:
            self._latencies.observe(seconds)

    async def page(self, visit: Visit) -> Answer:
        """Answer with the page."""
        return self._shelf.answer("index.html", visit.ask.headers.get("if-none-match", ""))

    async def file(self, visit: Visit) -> Answer:
        """Answer with one of the files that it is made of."""
        known = visit.ask.headers.get("if-none-match", "")
        return self._shelf.answer(visit.parameters["name"], known)

    async def live(self, _visit: Visit) -> Answer:
        """Tell what goes on, once a second, for a while."""
        self._closing.listen()
        return Answer(body=self._live.stream(), headers=_STREAM)

    def _look(self) -> dict[str, Any]:
        fleet = self._fleet.look()
        return {**fleet, **self._board.look(), "latency": self._latencies.summary()}

    def _rest(self) -> None:
        self._fleet.close()
        self._board.close()
