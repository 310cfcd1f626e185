"""
Which workers have a warm model, asked of the workers themselves.

Rule 1: One thread asks, whoever wants to know; an answer is good for a second.
Rule 2: It listens until nobody speaks any more.  Stopping at the first reply would
    delete the reply queue while others are still replying, and what they reply then
    stays in Redis for ever.
Rule 3: It uses a connection of its own.  From a pool, a broadcast takes two, and a
    few at once wait for each other without end.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from celery import Celery

__all__ = ["Census", "Probe", "Prober"]

log = logging.getLogger(__name__)

#: Seconds without a further reply after which all workers count as heard.
LISTEN = 1.0

#: Seconds for which an answer is good.
_FRESH = 1.0

#: Seconds for which it is better than none.
_REMEMBERED = 5.0


@dataclass(frozen=True, slots=True)
class Census:
    """
    What the workers said.

    Args:
        reached: Whether the broker took the question.
        warm: For each task name, the workers that have its model warm.
    """

    reached: bool
    warm: Mapping[str, tuple[str, ...]]

    def cold(self, tasks: Collection[str]) -> list[str]:
        """Return those of these tasks that no worker is ready for."""
        return [task for task in tasks if not self.warm.get(task)]


class Probe:
    """One question to all workers, and what has come back so far."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._started = time.monotonic()
        self._reached = False
        self._warm: dict[str, set[str]] = {}
        self._ended: float | None = None
        self._waiting: list[tuple[Collection[str], Future[None]]] = []

    @property
    def is_stale(self) -> bool:
        """Whether the question should be asked again."""
        # One that never ends, because the broker has gone, grows old like any other.
        known = self._started + LISTEN if self._ended is None else self._ended
        return time.monotonic() - known > _FRESH

    @property
    def has_ended(self) -> bool:
        """Whether no more replies will come."""
        return self._ended is not None

    def has_listened(self, seconds: float) -> bool:
        """Return whether it is over, or has gone on for so long."""
        return self._ended is not None or time.monotonic() - self._started >= seconds

    def census(self) -> Census:
        """Return what is known by now."""
        with self._guard:
            warm = {task: tuple(sorted(names)) for task, names in self._warm.items()}
            return Census(self._reached, warm)

    def settled(self, tasks: Collection[str]) -> Future[None]:
        """
        Return what is done when a worker is known for each task, or it is over.

        Args:
            tasks: Their names.
        """
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()  # so that nobody who waits can cancel it
        with self._guard:
            self._waiting.append((tasks, future))
            self._settle()
        return future

    def _settle(self) -> None:
        waiting, self._waiting = self._waiting, []
        for tasks, future in waiting:
            if self._ended is not None or all(self._warm.get(task) for task in tasks):
                future.set_result(None)
            else:
                self._waiting.append((tasks, future))

    def reach(self) -> None:
        """Note that the broker is there."""
        with self._guard:
            self._reached = True

    def hear(self, body: Mapping[str, Any]) -> None:
        """Note one worker's reply."""
        with self._guard:
            for worker, tasks in body.items():
                for task, state in tasks.items() if isinstance(tasks, dict) else ():
                    if isinstance(state, dict) and state.get("warm") and not state.get("paused"):
                        self._warm.setdefault(task, set()).add(worker)
            self._settle()

    def end(self, *, reached: bool) -> None:
        """Note that no more replies will come."""
        with self._guard:
            self._reached = reached
            self._ended = time.monotonic()
            self._settle()


class Prober:
    """
    Asks the workers, at most once at a time.

    Args:
        app: The Celery app whose workers are asked; never the thread that asks is held
            up by a broker that does not answer.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._asker: threading.Thread | None = None
        self._latest: Probe | None = None
        #: What the last question that is over has come to, and when.
        self._known: tuple[Census, float] | None = None

    def start(self) -> Probe:
        """Ask, unless that has just been done, and return at once what will know the answer."""
        with self._lock:
            if self._latest is None or self._latest.is_stale:
                self._latest = Probe()
                self._wanted.set()
            if self._asker is None or not self._asker.is_alive():
                self._asker = threading.Thread(target=self._run, name="prober", daemon=True)
                self._asker.start()
            return self._latest

    def remembered(self) -> Census | None:
        """Return what the last question has come to, if that was a few seconds ago at most."""
        if self._known is None or time.monotonic() - self._known[1] > _REMEMBERED:
            return None
        return self._known[0]

    def _run(self) -> None:
        connection = self._app.connection_for_write()
        # Kept, because the name of the reply queue is made from its identity: should a
        # straggler's reply outlive a question, the next question takes it away.
        mailbox = self._app.control.mailbox(connection)
        mailbox.producer_pool = None
        while True:
            self._wanted.wait()
            self._wanted.clear()
            probe = self._latest
            if probe is None:
                continue
            reached = False
            try:
                connection.ensure_connection(max_retries=1, interval_start=0, interval_max=0)
                probe.reach()
                mailbox.multi_call("batch_status", timeout=LISTEN, callback=probe.hear)
                reached = True
            except Exception as error:  # noqa: BLE001 - it must go on asking
                log.warning("asking the workers: %s: %s", type(error).__name__, error)
            finally:
                connection.release()
                mailbox.unclaimed.clear()
                probe.end(reached=reached)
                self._known = probe.census(), time.monotonic()
