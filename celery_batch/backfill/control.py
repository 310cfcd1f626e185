"""Inspects and controls running backfills from other processes.

Rule 1: nothing is stored.  Who is there answers, so a job that was killed is not listed,
        and leaves nothing behind.
Rule 2: a job never waits for who asks: a thread answers, with what it was told last.
Rule 3: a broker that is away is tried again until the job has ended.
Rule 4: a job that ends in a moment asks nothing of the broker: nobody could have seen it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self

from kombu.pidbox import Mailbox
from kombu.utils.uuid import uuid

from celery_batch.backfill.progress import Progress
from celery_batch.cluster.control_client import impatient_connection
from celery_batch.errors import BackfillError, BackfillStopped

__all__ = [
    "VERBS",
    "JobControl",
    "Jobs",
    "RemoteControl",
    "mailbox",
]


class JobControl:
    """
    Held by whoever may steer a job; the job looks at them between two turns.

    Each is set by one thread and read by another, and nothing else depends on it, hence
    no lock.
    """

    def __init__(self) -> None:
        #: Nothing more is to be sent; what is on its way is still collected.
        self.is_paused = False
        #: The job is to end, as if interrupted.
        self.is_stopped = False

    def pause(self) -> None:
        """Have nothing more sent."""
        self.is_paused = True

    def resume(self) -> None:
        """Have it go on."""
        self.is_paused = False

    def stop(self) -> None:
        """Have it end."""
        self.is_stopped = True

    def check(self) -> None:
        """
        Do nothing unless the job is to end.

        Raises:
            BackfillStopped: It is.
        """
        if self.is_stopped:
            raise BackfillStopped("stopped with celery batch jobs")


log = logging.getLogger(__name__)


#: Seconds until a broker that was away is tried again.
_AGAIN = 1.0


#: Seconds until the thread looks whether the job has ended, which waits for it.
_LOOK = 0.05


#: Seconds from the beginning of a job until it can be seen.
_SOON = 0.5


#: Seconds for the thread to say goodbye to the broker.
_LEAVE = 5.0


class _Mailbox(Mailbox):
    """Kombu's, but replies to it are not of the thread that has asked first."""

    @cached_property
    def oid(self) -> str:
        """Where replies go."""
        return uuid()


def mailbox(connection: Any) -> Any:
    """
    Return the mailbox on which jobs answer.

    Args:
        connection: To the broker of their app.
    """
    kind: Any = _Mailbox
    return kind("celery_batch_jobs", type="fanout", serializer="json")(connection)


class RemoteControl:
    """
    Lets others see and steer a job, as long as it is entered.

    Args:
        app: The Celery app of the task.
        task: Its name.
        files: The input, and the output, by which the job is known on this host; None for one
            that is begun in Python.
        job_control: What others want.
    """

    def __init__(
        self, app: Any, task: str, files: tuple[str, Path] | None, job_control: JobControl
    ) -> None:
        self._app = app
        self._job_control = job_control
        source, output = (files[0], str(files[1].resolve())) if files else (None, None)
        host = socket.gethostname()
        #: Short, and the same when the same command goes on.
        self.id = hashlib.sha256(f"{host}:{output or uuid()}".encode()).hexdigest()[:6]
        self._about = {
            "id": self.id,
            "task": task,
            "input": source,
            "output": output,
            "program": sys.argv[0],
            "host": host,
            "pid": os.getpid(),
            "started": time.time(),
        }
        self._progress = Progress(done=0)
        self._has_ended = Event()
        self._thread = Thread(target=self._run, name="backfill-remote", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._has_ended.set()
        self._thread.join(_LEAVE)  # who hangs in a broker's silence ends with the process

    def tell(self, progress: Progress) -> None:
        """Have others be told how far the job is."""
        self._progress = progress

    def report(self) -> dict[str, Any]:
        """Return what others are told."""
        progress, job_control = self._progress, self._job_control
        if progress.state in ("running", "paused"):  # as of the last turn, which may lie back
            state = (
                "stopping"
                if job_control.is_stopped
                else "paused"
                if job_control.is_paused
                else "running"
            )
            progress = replace(progress, state=state)
        return self._about | progress.told()

    def _handlers(self) -> dict[str, Callable[[Any], dict[str, Any]]]:
        def steered(by: Callable[[], None]) -> Callable[[Any], dict[str, Any]]:
            def handle(_state: Any) -> dict[str, Any]:
                by()
                return self.report()

            return handle

        job_control = self._job_control
        verbs = {"pause": job_control.pause, "resume": job_control.resume, "stop": job_control.stop}
        return {"report": steered(lambda: None)} | {name: steered(by) for name, by in verbs.items()}

    def _run(self) -> None:
        self._has_ended.wait(_SOON)
        while not self._has_ended.is_set():
            try:
                with self._app.connection_for_write() as connection:
                    self._answer(connection)
            except Exception as error:  # noqa: BLE001 (whatever a transport raises)
                log.debug("Cannot be reached through the broker for now: %r", error)
            self._has_ended.wait(_AGAIN)

    def _answer(self, connection: Any) -> None:
        connection.ensure_connection(max_retries=1, interval_start=0, interval_max=0)
        with connection.channel() as channel:
            box = mailbox(connection)
            node = box.Node(self.id, channel=channel, handlers=self._handlers())
            with node.listen(channel=channel):
                while not self._has_ended.is_set():
                    try:
                        connection.drain_events(timeout=_LOOK)
                    except TimeoutError:
                        continue


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
