"""What is known of a task that nobody waits for: how far it is, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celery import Task, states

from webapp.outcomes import Outcome, outcome_of
from webapp.tickets import Ticket

__all__ = ["News", "news_of"]

#: Seconds after its expiry until a task that has not ended counts as expired: clocks differ.
_SLACK = 5.0

_STATES: Mapping[str, str] = {
    states.PENDING: "queued",
    states.RECEIVED: "queued",
    states.STARTED: "started",
    states.RETRY: "started",
    states.SUCCESS: "succeeded",
    states.FAILURE: "failed",
    states.REVOKED: "revoked",
}


@dataclass(frozen=True, slots=True)
class News:
    """
    How far a task is.

    Args:
        ticket: Its ticket.
        state: ``queued``, ``started``, ``succeeded``, ``failed``, ``revoked`` or ``expired``.
        outcome: What came of it, once it has ended.
    """

    ticket: Ticket
    state: str
    outcome: Outcome | None = None

    @property
    def has_ended(self) -> bool:
        """Whether there will be no more news."""
        return self.state not in ("queued", "started")

    def body(self) -> dict[str, Any]:
        """Return what JSON says about it."""
        body: dict[str, Any] = {"id": self.ticket.text, "state": self.state}
        if self.state == "expired":
            message = "No worker took the task in time."
            body["error"] = {"type": "Expired", "message": message}
        elif self.outcome is not None and self.outcome.failure is not None:
            body["error"] = self.outcome.failure.body()
        elif self.outcome is not None:
            body["output"] = self.outcome.output
        return body


def news_of(task: Task, ticket: Ticket, expires: float) -> News:
    """
    Look up how far a task is; this blocks.

    Args:
        task: Any batch task of the app.
        ticket: Of the task.
        expires: Seconds after which no worker takes it any more, unless its ticket says
            otherwise.

    Raises:
        Exception: The result store cannot be reached.
    """
    result = task.AsyncResult(ticket.task_id)
    state = _STATES.get(result.state, "started")
    if result.ready():
        outcome = outcome_of(result)
        failure = outcome.failure
        if state == "revoked" and failure is not None and failure.kind == "DeadlineExceeded":
            state = "expired"
        return News(ticket, state, outcome)
    if ticket.within is not None:
        expires = ticket.within
    if state == "queued" and time.time() - ticket.sent > expires + _SLACK:
        return News(ticket, "expired")
    return News(ticket, state)
