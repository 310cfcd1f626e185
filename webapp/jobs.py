"""The routes about backfills: seen by who may see `/live`, steered where that is switched on."""

from __future__ import annotations

from celery_batch.backfill.jobs import VERBS
from webapp.board import Board
from webapp.bodies import document_of
from webapp.errors import InvalidInput
from webapp.messages import Answer
from webapp.routes import Route, Visit

__all__ = ["JobRoutes"]

#: Bytes of a body that says what is wanted of a job.
_LIMIT = 1024

_FRESH = {"Cache-Control": "no-store"}


class JobRoutes:
    """
    The backfills that are running.

    Args:
        board: Asks them, and says whether they may be steered from here.
    """

    def __init__(self, board: Board) -> None:
        self._board = board

    def routes(self) -> list[Route]:
        """Return these routes."""
        routes = [Route("GET", "/jobs", self.all)]
        if self._board.steers:
            routes.append(Route("POST", "/jobs/{id}", self.steer, _LIMIT))
        return routes

    async def all(self, visit: Visit) -> Answer:
        """Tell how far the running backfills are."""
        return Answer(body=await visit.way.call(self._board.look), headers=_FRESH)

    async def steer(self, visit: Visit) -> Answer:
        """Have a backfill pause, go on or stop."""
        document = document_of(visit.ask)
        if not isinstance(document, dict) or [*document] != ["do"] or document["do"] not in VERBS:
            verbs = " or ".join(f'{{"do": "{verb}"}}' for verb in VERBS)
            raise InvalidInput(f"the body must be {verbs}")
        told = await visit.way.call(self._board.steer, document["do"], visit.parameters["id"])
        return Answer(body=told, headers=_FRESH)
