"""The routes for those who do not wait: send now, ask later, or listen to the news."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

from celery import Task, states, uuid

from webapp.closing import Closing
from webapp.courier import Courier
from webapp.deadlines import deadline_of
from webapp.errors import RETRY_AFTER, Refused
from webapp.inputs import json_input
from webapp.messages import Answer, Stream
from webapp.routes import Route, Visit
from webapp.settings import Settings
from webapp.task_news import News, news_of
from webapp.tickets import Ticket, Tickets
from webapp.ways import Way

__all__ = ["Tasks", "sent_answer"]

#: Has a worker say when it begins with a task.
_TRACKED = {"batch_track_started": True}

_EVENTS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # nginx would keep the news until there is more of it
}

#: Seconds after which a stream looks whether the server is to stop.
_LOOKS = 1.0

#: To a browser's `EventSource`: in milliseconds, when to ask again.
_COME_AGAIN = "retry: 2000\n\n"
_STILL_HERE = ": still here\n\n"


class Tasks:
    """
    Sends tasks, and tells how far they are, whichever process sent them.

    Args:
        courier: Sends and revokes.
        task: The task that is sent.
        tickets: Of the tasks that are sent.
        settings: The limits.
        closing: Ends the streams.
    """

    def __init__(
        self,
        courier: Courier,
        task: Task,
        tickets: Tickets,
        settings: Settings,
        closing: Closing,
    ) -> None:
        self._courier = courier
        self._task = task
        self._tickets = tickets
        self._settings = settings
        self._closing = closing
        self._seats = threading.BoundedSemaphore(settings.event_threads)

    def routes(self) -> list[Route]:
        """Return these routes."""
        return [
            Route("POST", "/tasks", self.send, self._settings.max_body_bytes),
            Route("GET", "/tasks/{id}", self.look),
            Route("DELETE", "/tasks/{id}", self.revoke),
            Route("GET", "/events/{id}", self.listen, waits=True),
        ]

    async def send(self, visit: Visit) -> Answer:
        """Send ``{"input": ...}``, and say where its news will be."""
        text = json_input(visit.ask, self._settings)
        most = self._settings.task_timeout
        expires = deadline_of(visit.ask, most).within
        ticket = self._tickets.write(uuid(), expires if expires < most else None)
        options = {"expires": expires, "task_id": ticket.task_id, "headers": _TRACKED}
        deadline = visit.since + self._settings.timeout
        await self._courier.send(visit.way, self._task, [text], options, deadline)
        return sent_answer([ticket], visit.root)

    async def look(self, visit: Visit) -> Answer:
        """Tell how far a task is, and its output once it has one."""
        news = await self._news(visit.way, self._ticket(visit))
        return Answer(body=news.body(), headers={"Cache-Control": "no-store"})

    async def revoke(self, visit: Visit) -> Answer:
        """Have a task not run if it does not yet; of one that has ended, tell how."""
        ticket = self._ticket(visit)
        news = await self._news(visit.way, ticket)
        if not news.has_ended:
            with self._courier.refusing_when_unreachable():
                await visit.way.call(self._courier.revoke_for_good, ticket.task_id)
            news = await self._news(visit.way, ticket)
        return Answer(body=news.body(), headers={"Cache-Control": "no-store"})

    async def listen(self, visit: Visit) -> Answer:
        """Tell the news of a task as they come, until it has ended."""
        self._closing.listen()
        ticket = self._ticket(visit)
        first = await self._news(visit.way, ticket)
        return Answer(body=Stream(self._events(visit.way, first)), headers=_EVENTS)

    def _ticket(self, visit: Visit) -> Ticket:
        return self._tickets.read(visit.parameters["id"])

    async def _news(self, way: Way, ticket: Ticket) -> News:
        with self._courier.refusing_when_unreachable():
            return await way.call(news_of, self._task, ticket, self._settings.task_timeout)  # type: ignore[no-any-return]

    async def _events(self, way: Way, news: News) -> AsyncGenerator[str]:
        yield _event("queued", {"id": news.ticket.text})
        with self._seat(way) as is_seated:
            states_to_come, said = self._states(news), time.monotonic()
            while not news.has_ended:
                if self._closing.has_begun or not is_seated:
                    yield _COME_AGAIN
                    return
                try:
                    state = await way.next_of(states_to_come)
                    if state is None:  # what was stored has gone, and the task may go on
                        states_to_come = self._states(news)
                except TimeoutError:
                    if time.monotonic() - said < self._settings.heartbeat:
                        continue
                    yield _STILL_HERE
                    state, said = None, time.monotonic()
                if state == states.STARTED:
                    yield _event("started", {"id": news.ticket.text})
                    continue
                try:
                    news = await self._news(way, news.ticket)
                except Refused:  # the store has gone, and comes back: a client would only ask again
                    yield _STILL_HERE
                    said = time.monotonic()
                    await way.rest(RETRY_AFTER)
        yield _event("done", news.body())

    def _states(self, news: News) -> Any:
        result = self._task.AsyncResult(news.ticket.task_id)
        return result.states(timeout=min(self._settings.heartbeat, _LOOKS))

    @contextmanager
    def _seat(self, way: Way) -> Iterator[bool]:
        """Say whether there is room for one more to listen; on an event loop there always is."""
        is_seated = not way.holds_thread or self._seats.acquire(blocking=False)
        try:
            yield is_seated
        finally:
            if way.holds_thread and is_seated:
                self._seats.release()


def sent_answer(tickets: list[Ticket], root: str) -> Answer:
    """
    Return the answer about tasks that were sent and may still run.

    Args:
        tickets: Of each.
        root: The path below which the app is.
    """
    tasks = [
        {
            "id": each.text,
            "url": f"{root}/tasks/{each.text}",
            "events": f"{root}/events/{each.text}",
        }
        for each in tickets
    ]
    if len(tasks) > 1:
        return Answer(status=HTTPStatus.ACCEPTED, body={"tasks": tasks})
    location = {"Location": tasks[0]["url"]}
    return Answer(status=HTTPStatus.ACCEPTED, body=tasks[0], headers=location)


def _event(name: str, data: Any) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"
