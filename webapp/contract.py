"""
The web contract: what every door answers, whichever framework it is made of.

A door turns its framework's request into an `Ask`, calls `answer` in a thread or
`aanswer` in an event loop, and turns the `Answer` back.  It knows nothing else: routes,
limits, parsing and errors are here and below, written once for both.
"""

from __future__ import annotations

import json
import math
import time
from http import HTTPStatus
from typing import Any

from celery import Celery, Task
from celery.local import maybe_evaluate
from celery.utils.time import maybe_timedelta

from celery_batch.errors import ConfigurationError
from webapp.board import Board
from webapp.bodies import check_size
from webapp.closing import Closing
from webapp.courier import Courier
from webapp.documents import Documents
from webapp.guard import Guard
from webapp.home import Home
from webapp.jobs import JobRoutes
from webapp.loop_way import LoopWay
from webapp.messages import Answer, Ask
from webapp.meters import UNKNOWN, Meters
from webapp.pictures import Pictures
from webapp.predictions import Predictions
from webapp.probes import Probes
from webapp.readiness import Prober
from webapp.routes import Routes, Visit
from webapp.settings import Settings, prepare
from webapp.straight import straight
from webapp.tasks import Tasks
from webapp.thread_way import ThreadWay
from webapp.tickets import Tickets
from webapp.ways import Way

__all__ = ["Contract"]

#: What is counted where a client has gone before its answer came, as nginx does.
HANGUP = 499

#: They have no body, and so no length of one (RFC 9110, section 8.6).
_BODILESS = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})

_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


class Contract:
    """
    All routes, and what happens around each of them.

    Args:
        batched: The task behind `predict` and `stream`.
        single: The task behind `naive`.
        settings: The limits.
        pictured: The task behind `pictures`; without one there is no such route.

    Raises:
        ConfigurationError: Answers of these tasks cannot be awaited.
    """

    def __init__(
        self, batched: Task, single: Task, settings: Settings, *, pictured: Task | None = None
    ) -> None:
        # Celery's proxies look their task up again for whatever is asked of it.
        batched, single, pictured = map(maybe_evaluate, (batched, single, pictured))
        app = batched.app
        if single.app is not app:
            raise ConfigurationError(f"{batched.name} and {single.name} have different apps")
        prepare(app)
        if settings.max_queue is not None:
            app.conf.batch_max_queue = settings.max_queue
        prober = Prober(app)
        self.meters = Meters()
        courier = Courier(app, prober, settings, self.meters)
        tickets = Tickets(_secret(app, settings), _lifetime(app, settings))
        predictions = Predictions(courier, (batched, single), tickets, settings)
        uploads = [Pictures(predictions, pictured, self.meters, settings)] if pictured else []
        watched = [each.name for each in (batched, single, pictured) if each]
        self.closing = closing = Closing()
        board = Board(app, watched, steers=settings.steer_jobs)
        self._home = Home(app, watched, settings.live_threads, closing, board=board)
        self.settings = settings
        #: The table that doors read: a route added here is one of every door.
        routes = [
            *predictions.routes(),
            *(route for each in uploads for route in each.routes()),
            *Tasks(courier, batched, tickets, settings, closing).routes(),
            *Probes(prober, (batched.name, single.name)).routes(),
            *self.meters.routes(),
            *JobRoutes(board).routes(),
            *self._home.routes(),
        ]
        self.routes = Routes([*routes, *Documents(routes, settings).routes()])
        self._guard = Guard(settings, self.routes.methods)
        self._loop = LoopWay()

    def answer(self, ask: Ask) -> Answer:
        """
        Answer a request, and block this thread meanwhile.

        Args:
            ask: The request.

        Returns:
            An answer whose body is bytes, or text that comes bit by bit.
        """
        return straight(self._answer(ask, ThreadWay(ask.connection)))

    async def aanswer(self, ask: Ask) -> Answer:
        """
        Answer a request in an event loop; cancelled, its tasks are revoked.

        Args:
            ask: The request.

        Returns:
            As `answer`.
        """
        return await self._answer(ask, self._loop)

    def failed(self, ask: Ask) -> Answer:
        """
        Return what a client is told when a door has failed; why is for the door to log.

        Args:
            ask: The request, as far as it is known.
        """
        return _encoded(ask, self._guard.failed(ask))

    async def _answer(self, ask: Ask, way: Way) -> Answer:
        since = time.monotonic()
        self.meters.begin()
        method = path = UNKNOWN
        status: int = HANGUP

        async def routed() -> Answer:
            nonlocal method, path
            route, parameters = self.routes.find(ask.method, ask.path)
            method, path = ask.method, route.path
            check_size(ask, route.limit)
            visit = Visit(ask, way, since, parameters, self._guard.root(ask))
            return _encoded(ask, await route.view(visit))

        try:
            answer = await self._guard.answer(ask, way, routed)
            status = answer.status
        finally:
            taken = time.monotonic() - since
            self._home.observe(ask, status, taken)
            self.meters.observe(method, path, status, taken)
        if isinstance(answer.body, bytes) or hasattr(answer.body, "__aiter__"):
            return answer
        if reason := _reason(answer):
            self.meters.refused(reason)
        return _encoded(ask, answer)


def _reason(answer: Answer) -> str | None:
    """Return why a request was refused; None if it was not, or has met a bug of ours."""
    if not isinstance(answer.body, dict) or answer.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return None
    return str(answer.body["error"]["type"])


def _secret(app: Celery, settings: Settings) -> str:
    """Return what seals tickets: who knows the servers' addresses can read all results anyway."""
    return settings.secret or f"{app.conf.broker_url} {app.conf.result_backend}"


def _lifetime(app: Celery, settings: Settings) -> float:
    """Return the seconds after which nothing is left of a task that has been sent."""
    kept = maybe_timedelta(app.conf.result_expires)
    return settings.task_timeout + (kept.total_seconds() if kept else math.inf)


def _encoded(ask: Ask, answer: Answer) -> Answer:
    """Return an answer as it goes over the wire."""
    body: Any = answer.body
    if hasattr(body, "__aiter__"):
        is_wanted = ask.method != "HEAD"
        return answer if is_wanted else answer._replace(body=b"")
    headers = dict(answer.headers)
    if not isinstance(body, bytes):
        body = _JSON.encode(body).encode()
        headers.setdefault("Content-Type", "application/json")
    if answer.status not in _BODILESS:
        headers["Content-Length"] = str(len(body))
    return Answer(status=answer.status, body=b"" if ask.method == "HEAD" else body, headers=headers)
