"""
How a running backfill is reached: it answers on a mailbox of the broker.

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
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self

from kombu.pidbox import Mailbox
from kombu.utils.uuid import uuid

from celery_batch.backfill.progress import Progress
from celery_batch.backfill.reins import Reins

__all__ = ["Remote", "mailbox"]

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


class Remote:
    """
    Lets others see and steer a job, as long as it is entered.

    Args:
        app: The Celery app of the task.
        task: Its name.
        files: The input, and the output, by which the job is known on this host; None for one
            that is begun in Python.
        reins: What others want.
    """

    def __init__(self, app: Any, task: str, files: tuple[str, Path] | None, reins: Reins) -> None:
        self._app = app
        self._reins = reins
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
        progress, reins = self._progress, self._reins
        if progress.state in ("running", "paused"):  # as of the last turn, which may lie back
            state = "stopping" if reins.is_stopped else "paused" if reins.is_paused else "running"
            progress = replace(progress, state=state)
        return self._about | progress.told()

    def _handlers(self) -> dict[str, Callable[[Any], dict[str, Any]]]:
        def steered(by: Callable[[], None]) -> Callable[[Any], dict[str, Any]]:
            def handle(_state: Any) -> dict[str, Any]:
                by()
                return self.report()

            return handle

        reins = self._reins
        verbs = {"pause": reins.pause, "resume": reins.resume, "stop": reins.stop}
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
