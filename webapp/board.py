"""
The backfills that run beside the web tier, as the page shows them.

Rule 1: To look never raises; a broker that is away has no jobs to tell of.
Rule 2: Jobs of other tasks are left out, and so is what is nobody's business on the web.
Rule 3: A job that does not answer this time may be busy; it is called silent for a while
    before it is forgotten.
Rule 4: An answer is good for a moment, so that many who look are one question.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import PurePath
from typing import Any

from celery import Celery

from celery_batch.backfill.jobs import Jobs
from celery_batch.errors import BackfillError
from webapp.errors import BrokerUnreachable, NotFound

__all__ = ["Board"]

log = logging.getLogger(__name__)

#: Seconds without a further reply after which all jobs count as heard.
_LISTEN = 0.4

#: Seconds for which an answer is good: less than from one look of the page to the next, as many
#: a job runs for a few seconds only.
_FRESH = 0.9

#: Seconds for which a job that does not answer is remembered.
_SILENCE = 8.0

_NUMBERS = ("done", "failed", "rate", "flying", "window", "workers", "silent")
_OPTIONAL = ("total", "left")


class Board:
    """
    Asks the running backfills of some tasks, one thread at a time.

    Args:
        app: The Celery app of the tasks.
        tasks: Their names.
        steers: Whether jobs may be steered from here.
    """

    def __init__(self, app: Celery, tasks: Collection[str], *, steers: bool = False) -> None:
        self.steers = steers
        self._jobs = Jobs(app, _LISTEN)
        self._tasks = frozenset(tasks)
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, dict[str, Any]]] = {}
        self._asked = -math.inf

    def look(self) -> dict[str, Any]:
        """Return what the jobs say, and whether they may be steered, as JSON has it."""
        with self._lock:
            if time.monotonic() - self._asked > _FRESH:
                self._ask()
            jobs = [
                job if heard == self._asked else {**job, "state": "silent"}
                for heard, job in self._known.values()
            ]
            return {"jobs": jobs, "steers": self.steers}

    def steer(self, verb: str, name: str) -> dict[str, Any]:
        """
        Have a job pause, go on or stop, and return what it says.

        Args:
            verb: One of `celery_batch.backfill.jobs.VERBS`.
            name: Its id.

        Raises:
            NotFound: No such job is running.
            BrokerUnreachable: It cannot be told.
        """
        with self._lock:
            if name not in self._known:
                self._ask()
            if name not in self._known:
                raise NotFound("no such backfill is running")
            try:
                told = self._shown(self._jobs.tell(verb, name))
            except BackfillError as error:
                raise NotFound(str(error)) from error
            except Exception as error:
                self._jobs.close()
                raise BrokerUnreachable("the broker does not answer") from error
            if told is None:
                raise NotFound("no such backfill is running")
            self._known[name] = (self._asked, told)
            return told

    def close(self) -> None:
        """Let go of the broker until the next look."""
        with self._lock:
            self._jobs.close()

    def _ask(self) -> None:
        try:
            jobs = self._jobs.all()
        except Exception as error:  # noqa: BLE001 - whatever a transport raises
            log.info("the broker does not answer: %s: %s", type(error).__name__, error)
            self._jobs.close()
            jobs = []
        self._asked = time.monotonic()
        for job in jobs:
            if (shown := self._shown(job)) is not None:
                self._known[shown["id"]] = (self._asked, shown)
        for name, (heard, _) in list(self._known.items()):
            if self._asked - heard > _SILENCE:
                del self._known[name]

    def _shown(self, job: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what may be seen of a job; None of one that is not ours, or makes no sense."""
        numbers = {name: job.get(name) for name in _NUMBERS}
        numbers |= {name: job.get(name) for name in _OPTIONAL if job.get(name) is not None}
        if job.get("task") not in self._tasks or not all(map(_is_number, numbers.values())):
            return None
        return {
            "id": str(job["id"]),
            "task": job["task"],
            "name": PurePath(str(job.get("output") or job.get("program") or "")).name,
            "state": str(job.get("state", "")),
            **dict.fromkeys(_OPTIONAL),
            **numbers,
        }


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
