"""The backfills that are running, wherever they run: who asks, and who steers."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Self

from celery_batch.backfill.remote import mailbox
from celery_batch.errors import BackfillError
from celery_batch.fleet.bus import impatient_connection

__all__ = ["VERBS", "Jobs"]

#: What may be wanted of a job.
VERBS = ("pause", "resume", "stop")

#: Seconds without a further reply after which all jobs count as heard.
_LISTEN = 1.0

#: Seconds for a job that is known to answer; who has answered is not waited for.
_REPLY = 3.0


class Jobs:
    """
    The running backfills of an app's broker; for one thread at a time, on a connection of its own.

    Args:
        app: The Celery app.
        timeout: Seconds without a further reply after which all count as heard.
    """

    def __init__(self, app: Any, timeout: float = _LISTEN) -> None:
        self._app = app
        self._timeout = timeout
        self._box: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def all(self) -> list[dict[str, Any]]:
        """Return what each running job says of itself, the oldest first."""
        told = (reply for replies in self._call("report") for reply in replies.values())
        jobs = [job for job in told if isinstance(job, dict) and isinstance(job.get("id"), str)]
        return sorted(jobs, key=lambda job: float(job.get("started") or 0))

    def steer(self, verb: str, name: str) -> dict[str, Any]:
        """
        Have a job pause, go on or stop, and return what it says.

        Args:
            verb: One of `VERBS`.
            name: Its id, or the beginning of it.

        Raises:
            BackfillError: No running job has this name, or more than one; or it has ended since.
        """
        known = [job["id"] for job in self.all()]
        found = [each for each in known if name and each.startswith(name)]
        if len(found) != 1:
            which = "is the beginning of more than one" if found else "is no running backfill"
            there = ", ".join(found or known) or "none"
            raise BackfillError(f"{name}: {which}; there are: {there}")
        return self.tell(verb, found[0])

    def tell(self, verb: str, job_id: str) -> dict[str, Any]:
        """
        Have a job that is known pause, go on or stop, and return what it says.

        Args:
            verb: One of `VERBS`.
            job_id: Its whole id.

        Raises:
            BackfillError: It does not answer.
        """
        for replies in self._call(verb, [job_id]):
            if isinstance(reply := replies.get(job_id), dict):
                return reply
        raise BackfillError(f"{job_id}: does not answer; it may have ended")

    def close(self) -> None:
        """Let go of the broker until the next question."""
        box, self._box = self._box, None
        if box is None:
            return
        with suppress(Exception):
            # A straggler's reply would otherwise stay in Redis for ever.
            if box.connection.connected:
                box.connection.default_channel.queue_delete(box.reply_queue.name)
        with suppress(Exception):
            box.connection.release()

    def _call(self, verb: str, names: list[str] | None = None) -> list[dict[str, Any]]:
        if self._box is None:
            self._box = mailbox(impatient_connection(self._app))
        self._box.connection.ensure_connection(max_retries=1, interval_start=0, interval_max=0)
        try:
            if names is None:
                return list(self._box.multi_call(verb, timeout=self._timeout))
            return list(self._box.call(names, verb, timeout=max(_REPLY, self._timeout)))
        finally:
            self._box.unclaimed.clear()
