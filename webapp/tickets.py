"""
What a client holds of a task: its id, when it was sent, and a seal.

Celery keeps nothing of a task that waits, so a task that waits and one that never was look
the same to it.  The seal tells them apart, in every process that has the secret, without a
word to any server; and the time tells a task that waits from one long forgotten.
"""

from __future__ import annotations

import hmac
import time
from dataclasses import dataclass
from math import ceil

from webapp.errors import NotFound

__all__ = ["Ticket", "Tickets"]

#: Bytes of the seal: who guesses a ticket learns that there is nothing behind it.
_SEAL = 8


@dataclass(frozen=True, slots=True)
class Ticket:
    """
    A task that was sent for a client.

    Args:
        task_id: Celery's.
        sent: When, in seconds since 1970.
        text: What the client holds: ``<task id>.<sent>.<seal>``, or with a time of its own
            ``<task id>.<sent>-<within>.<seal>``.
        within: Seconds in which it has to reach the model; None for what is set for all.
    """

    task_id: str
    sent: int
    text: str
    within: int | None = None


class Tickets:
    """
    Writes and reads tickets.

    Args:
        secret: The same in all web processes of a service.
        lifetime: Seconds after which nothing can be known of a task any more.
    """

    def __init__(self, secret: str, lifetime: float) -> None:
        self._secret = secret.encode()
        self._lifetime = lifetime

    def write(self, task_id: str, within: float | None = None) -> Ticket:
        """
        Return the ticket of a task that is sent now.

        Args:
            task_id: Celery's.
            within: Seconds in which it has to reach the model, if it has a time of its own.
        """
        sent, seconds = int(time.time()), None if within is None else ceil(within)
        when = f"{sent:x}" if seconds is None else f"{sent:x}-{seconds:x}"
        text = f"{task_id}.{when}.{self._seal(task_id, when)}"
        return Ticket(task_id, sent, text, seconds)

    def read(self, text: str) -> Ticket:
        """
        Return the ticket that a client shows.

        Args:
            text: As it comes.

        Raises:
            NotFound: It is none of ours, or too old.
        """
        named, _, seal = text.rpartition(".")
        task_id, _, when = named.rpartition(".")
        expected = self._seal(task_id, when)
        if not hmac.compare_digest(expected.encode(), seal.encode("utf-8", "replace")):
            raise NotFound("there is no such task")
        sent, _, within = when.partition("-")
        if time.time() - int(sent, 16) > self._lifetime:
            raise NotFound("this task was too long ago: its result is not kept any more")
        return Ticket(task_id, int(sent, 16), text, int(within, 16) if within else None)

    def _seal(self, task_id: str, when: str) -> str:
        text = f"{task_id}.{when}".encode("utf-8", "replace")
        return hmac.digest(self._secret, text, "sha256")[:_SEAL].hex()
