"""Lists and controls running backfills from other processes, over the broker.

Rule 1: nothing is stored.  Running jobs answer, so a job that was killed is not listed,
        and leaves nothing behind.
Rule 2: a job never waits for a command: a thread answers, with the latest progress.
Rule 3: a broker that is away is tried again until the job has ended.
Rule 4: a job that ends in a moment does not connect to the broker for this.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self

from kombu.exceptions import OperationalError
from kombu.pidbox import Mailbox
from kombu.utils.uuid import uuid

from celery_batch.backfill.engine import Backfill
from celery_batch.backfill.progress import Clock, Progress
from celery_batch.backfill.window import Answer
from celery_batch.cluster.control_client import ControlClient
from celery_batch.errors import BackfillError, BackfillStopped

__all__ = ["JobControl", "Jobs"]

log = logging.getLogger(__name__)

#: Seconds until a broker that was away is tried again.
_RETRY_AFTER = 1.0

#: Seconds after which the thread notices that the job has ended.
_POLL = 0.05

#: Seconds from the beginning of a job until it can be seen.
_START_AFTER = 0.5

#: Seconds for the thread to disconnect from the broker.
_STOP_TIMEOUT = 5.0

#: The same where the job was interrupted, or has failed: the broker may be the reason.
_INTERRUPT_TIMEOUT = 0.5


class _Mailbox(Mailbox):
    """Kombu's, but its reply queue is its own, and not that of the first thread that asked."""

    @cached_property
    def oid(self) -> str:
        return uuid()


_MAILBOX: Any = _Mailbox(  # type: ignore[no-untyped-call]
    "celery_batch_jobs", type="fanout", serializer="json"
)


class JobControl:
    """Lets other processes list and control a job while it is entered."""

    def __init__(
        self, app: Any, task: str, source: str | None = None, output: Path | None = None
    ) -> None:
        self._app = app
        #: Nothing more is sent; what was sent is still collected.
        self.is_paused = False
        #: The job ends as if interrupted.
        self.is_stopped = False
        #: As of the latest step.
        self.progress = Progress(done=0)
        path = str(output.resolve()) if output else None
        host = socket.gethostname()
        #: Short, and the same when the same command goes on.
        self.id = hashlib.sha256(f"{host}:{path or uuid()}".encode()).hexdigest()[:6]
        self._about = {
            "id": self.id,
            "task": task,
            "input": source,
            "output": path,
            "program": sys.argv[0],
            "host": host,
            "pid": os.getpid(),
            "started": time.time(),
        }
        self._has_ended = Event()
        self._thread = Thread(target=self._run, name="backfill-control", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_exception: object) -> None:
        self._has_ended.set()
        # If the broker hangs, it ends with the process.
        self._thread.join(_STOP_TIMEOUT if kind is None else _INTERRUPT_TIMEOUT)

    def steps(
        self, backfill: Backfill, clock: Clock, save: Callable[[list[Answer]], int]
    ) -> Iterator[list[Answer]]:
        """Run a backfill, pause and stop it on command, and yield its answers."""
        while not backfill.is_over:
            if self.is_stopped:
                raise BackfillStopped("stopped with celery batch jobs")
            is_paused = self.is_paused
            answers = backfill.step(sends=not is_paused)
            clock.failed += save(answers)  # returns how many rows have failed
            clock.done += len(answers)
            state = "paused" if is_paused else "running"
            self.progress = clock.progress(**backfill.status(), state=state)
            yield answers

    def report(self) -> dict[str, Any]:
        """Return what other processes are shown of the job."""
        progress = self.progress
        if progress.state != "writing":  # as of the latest step, which may be some time ago
            state = "paused" if self.is_paused else "running"
            progress = replace(progress, state="stopping" if self.is_stopped else state)
        return self._about | progress.as_dict()

    def _handler(self, **flags: bool) -> Callable[[Any], dict[str, Any]]:
        def handle(_state: Any) -> dict[str, Any]:
            vars(self).update(flags)
            return self.report()

        return handle

    def _run(self) -> None:
        self._has_ended.wait(_START_AFTER)
        while not self._has_ended.is_set():
            try:
                with self._app.connection_for_write() as connection:
                    self._answer(connection)
            except Exception as error:  # noqa: BLE001 (whatever a transport raises)
                log.debug("Cannot be reached through the broker for now: %r", error)
            self._has_ended.wait(_RETRY_AFTER)

    def _answer(self, connection: Any) -> None:
        connection.ensure_connection(max_retries=1, interval_start=0, interval_max=0)
        handlers = {
            "report": self._handler(),
            "pause": self._handler(is_paused=True),
            "resume": self._handler(is_paused=False),
            "stop": self._handler(is_stopped=True),
        }
        with connection.channel() as channel:
            node = _MAILBOX(connection).Node(self.id, channel=channel, handlers=handlers)
            with node.listen(channel=channel):
                while not self._has_ended.is_set():
                    with suppress(TimeoutError):
                        connection.drain_events(timeout=_POLL)


#: Seconds to wait for the reply of a job that is known.
_REPLY_TIMEOUT = 3.0


class Jobs:
    """The running backfills of an app's broker; for one thread at a time, on its own connection."""

    def __init__(self, app: Any, timeout: float = 1.0) -> None:
        self._client = ControlClient(app, _MAILBOX)
        #: Seconds without a further reply after which all jobs have answered.
        self._timeout = timeout

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._client.close()

    def all(self) -> list[dict[str, Any]]:
        """Return the report of each running job, the oldest first."""
        replies = self._ask("report", self._timeout)
        jobs = (job for job in replies.values() if "id" in job)  # else it could not be made
        return sorted(jobs, key=lambda job: float(job["started"]))

    def control(self, command: str, name: str) -> dict[str, Any]:
        """Send a job a command, and return its report."""
        known = [job["id"] for job in self.all()]
        found = [each for each in known if name and each.startswith(name)]
        if len(found) != 1:
            which = "is the beginning of more than one" if found else "is no running backfill"
            there = ", ".join(found or known) or "none"
            raise BackfillError(f"{name}: {which}; there are: {there}")
        timeout = max(_REPLY_TIMEOUT, self._timeout)
        reply = self._ask(command, timeout, found).get(found[0])
        if not isinstance(reply, dict):
            raise BackfillError(f"{found[0]}: does not answer; it may have ended")
        return reply

    def _ask(self, *command: Any) -> dict[str, Any]:
        try:
            return self._client.ask(*command)
        except (OperationalError, OSError) as error:
            raise BackfillError(f"the broker cannot be reached: {error}") from error
