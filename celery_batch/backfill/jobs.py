"""The backfills that are running, wherever they run: who asks, and who steers."""

from __future__ import annotations

from typing import Any

from celery_batch.backfill.remote import mailbox
from celery_batch.errors import BackfillError

__all__ = ["VERBS", "Jobs"]

#: What may be wanted of a job.
VERBS = ("pause", "resume", "stop")

#: Seconds without a further reply after which all jobs count as heard.
_LISTEN = 1.0


class Jobs:
    """
    The running backfills of an app's broker.

    Args:
        app: The Celery app.
        timeout: Seconds without a further reply after which all count as heard.
    """

    def __init__(self, app: Any, timeout: float = _LISTEN) -> None:
        self._app = app
        self._timeout = timeout

    def all(self) -> list[dict[str, Any]]:
        """Return what each running job says of itself, the oldest first."""
        told = (reply for replies in self._call("report") for reply in replies.values())
        jobs = [job for job in told if isinstance(job, dict) and "id" in job]
        return sorted(jobs, key=lambda job: float(job.get("started", 0.0)))

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
        for replies in self._call(verb, found):
            if isinstance(reply := replies.get(found[0]), dict):
                return reply
        raise BackfillError(f"{name}: does not answer; it may have ended")

    def _call(self, verb: str, names: list[str] | None = None) -> list[dict[str, Any]]:
        with self._app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1)
            box = mailbox(connection)
            try:
                if names is None:
                    return list(box.multi_call(verb, timeout=self._timeout))
                return list(box.call(names, verb, timeout=self._timeout))
            finally:
                # A straggler's reply would otherwise stay in Redis for ever.
                connection.default_channel.queue_delete(box.reply_queue.name)
