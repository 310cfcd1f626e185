"""
Waiting for results: one reader thread for all requests of a process.

Rule 1: An answer is expected before its task is sent, so it cannot be missed.
Rule 2: A message wakes only whom it is for; a lost one is found by looking, a second later.
Rule 3: What nobody waits for any more is dropped, whatever state Redis is in.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from contextlib import suppress

from celery import Celery, uuid
from celery.result import AsyncResult

__all__ = ["Inbox", "Wait"]

log = logging.getLogger(__name__)

#: Seconds between two looks at results whose message may have been lost.
_LOOK_EVERY = 1.0

#: Seconds the reader rests when Redis is away.
_REST = 0.2

#: Most results looked at in one command.
_LOOK_AT = 1000


class Wait:
    """
    The answers that one request waits for.

    Args:
        app: The Celery app.
        count: How many tasks will be sent, under the ids of `results`.
    """

    def __init__(self, app: Celery, count: int) -> None:
        self.results: list[AsyncResult] = [app.AsyncResult(uuid()) for _ in range(count)]
        self.since = time.monotonic()
        self.missing = {result.id for result in self.results}
        self._complete = threading.Event()

    def until(self, deadline: float) -> bool:
        """Wait until every task has ended or it is so late; say whether they have."""
        return self._complete.wait(max(0.0, deadline - time.monotonic()))

    def arrived(self, result: AsyncResult) -> None:
        """Note that a task has ended; called by the reader."""
        self.missing.discard(result.id)
        if not self.missing:
            self._complete.set()

    def forget(self) -> None:
        """Let go of the results: each knows its wait, and only this breaks the circle."""
        self.results.clear()


class Inbox:
    """
    Where the results of this process's tasks arrive.

    With a back end for each thread, as Celery has by default, every thread of a web
    server holds its own subscription; sharing one without a reader wakes all threads
    for every message.  One reader for one subscription has the shortest tail, and works
    the same however many threads a server makes.

    Args:
        app: A Celery app made ready by `webapp.settings.prepare`.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        # Celery would subscribe once more in the thread that sends, where an unreachable
        # Redis holds it up; by then `expect` has done it.
        app.backend.on_task_call = _subscribed_before
        self._lock = threading.Lock()
        self._waits: set[Wait] = set()
        self._dropped: deque[Wait] = deque()
        self._reader: threading.Thread | None = None

    def expect(self, wait: Wait) -> None:
        """
        Listen for the results of tasks about to be sent.

        Args:
            wait: Dropped by the caller when done, also if this fails.

        Raises:
            Exception: Redis cannot be reached.
        """
        with self._lock:
            self._waits.add(wait)
        for result in wait.results:
            result.then(wait.arrived)
        self._keep_reading()

    def drop(self, wait: Wait) -> None:
        """Forget the results, at once; those that are still to come will meet nobody."""
        with self._lock:
            was_expected = wait in self._waits
            self._waits.discard(wait)
        if was_expected and wait.missing:
            # Unsubscribing may have to connect again: not while a client waits.
            self._dropped.append(wait)
            self._keep_reading()
        else:
            wait.forget()

    def _keep_reading(self) -> None:
        """Start the reader unless it runs; a forked copy of this process needs its own."""
        with self._lock:
            if self._reader is None or not self._reader.is_alive():
                self._reader = threading.Thread(target=self._read, name="inbox", daemon=True)
                self._reader.start()

    def _read(self) -> None:
        looked = time.monotonic()
        while True:
            try:
                while self._dropped:
                    self._unsubscribe(self._dropped.popleft())
                self._take_message()
                if time.monotonic() - looked >= _LOOK_EVERY:
                    looked = time.monotonic()
                    self._look(looked)
            except Exception as error:  # noqa: BLE001 - whatever it is, others still wait
                log.warning("reading results: %r", error)
                time.sleep(_REST)

    def _take_message(self) -> None:
        with suppress(TimeoutError):
            self._app.backend.result_consumer.drain_events(timeout=_LOOK_EVERY)

    def _unsubscribe(self, wait: Wait) -> None:
        for result in wait.results:
            try:
                self._app.backend.remove_pending_result(result)
            except Exception:  # the connection is gone, and the subscription with it
                log.debug("could not unsubscribe from %s", result.id, exc_info=True)
        wait.forget()

    def _look(self, now: float) -> None:
        """Look up results that should have come: a restart of Redis loses messages."""
        backend = self._app.backend
        with self._lock:
            late = [wait for wait in self._waits if now - wait.since >= _LOOK_EVERY]
        keys = [
            backend.get_key_for_task(task_id) for wait in late for task_id in list(wait.missing)
        ]
        for start in range(0, len(keys), _LOOK_AT):
            for stored in backend.mget(keys[start : start + _LOOK_AT]):
                if stored:
                    backend.result_consumer.on_state_change(backend.decode_result(stored), None)


def _subscribed_before(_producer: object, _task_id: str) -> None:
    """Do nothing where Celery's back end would subscribe."""
