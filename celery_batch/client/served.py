"""
Whether a worker serves a task, known without a request to the broker for each call.

A thread polls the broker while `is_served` is called, so only the first call waits for it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future, wait
from typing import Any

from kombu.exceptions import OperationalError

from celery_batch.client.background import BrokerPoller
from celery_batch.compat.tasks import queue_of_calls

__all__ = ["ServedPoller", "ais_served", "is_served"]

#: Seconds for which an answer is good.
FRESH = 1.0

#: Seconds between two polls, and after the last call until polling ends.
_INTERVAL, _LINGER = 0.4, 5.0

#: Seconds in which workers answer where the broker itself cannot be asked.
_INSPECT_TIMEOUT = 1.0

#: Whether a worker serves a task, or why that is not known.
Answer = bool | str


class _Entry:
    """What is known of one task on one queue."""

    def __init__(self) -> None:
        self.requested = self.answered = 0.0
        #: The last answer, or the next one, for all that wait for it.
        self.answer: Future[Answer] = Future()


class ServedPoller(BrokerPoller):
    """Polls which tasks of one app are served."""

    thread_name = "celery-batch-served"

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self._entries: dict[tuple[str, str], _Entry] = {}
        self._lock = threading.Lock()

    def request(self, queue: str, task: str) -> Future[Answer]:
        """Return the answer for a task on a queue if it is fresh, else one that is to come."""
        now = time.monotonic()
        with self._lock:
            entry = self._entries.setdefault((queue, task), _Entry())
            entry.requested = now
            answer = entry.answer
            if answer.done():
                if now - entry.answered <= FRESH:
                    return answer
                answer = entry.answer = Future()
        try:
            self._thread.wake()
        except RuntimeError:  # the interpreter is ending, or there are too many threads
            self._poll()
            self._close_reader()
        return answer

    def _poll(self) -> float | None:
        """Poll each pair of recent calls once; return the seconds until the next poll."""
        with self._lock:
            recent = time.monotonic() - _LINGER
            wanted = [
                pair
                for pair, each in self._entries.items()
                if each.requested >= recent or not each.answer.done()
            ]
            if not wanted:
                self._entries.clear()
                return None
        for pair in wanted:
            self._refresh(pair)
        with self._lock:
            is_answered = all(each.answer.done() for each in self._entries.values())
            return _INTERVAL if is_answered else 0.0

    def _refresh(self, pair: tuple[str, str]) -> None:
        try:
            found: Answer = self._is_served(*pair)
        except Exception as error:  # noqa: BLE001 (whatever a transport raises)
            found = str(error) or type(error).__name__
        with self._lock:
            entry = self._entries[pair]
            if entry.answer.done():
                entry.answer = Future()
            entry.answer.set_result(found)
            entry.answered = time.monotonic()

    def _is_served(self, queue: str, task: str) -> bool:
        """Ask the broker or, where it cannot say, all workers which queues they consume."""
        if self._can_read:
            return self._read(lambda reader: reader.is_served(queue, task))
        active = self._app.control.inspect(timeout=_INSPECT_TIMEOUT).active_queues() or {}
        return any(each["name"] == queue for queues in active.values() for each in queues)


def is_served(task: Any, queue: Any, timeout: float | None) -> bool:
    """Return whether a worker serves a task; see `ClientMethods.is_served`."""
    answer = _request(task, queue)
    wait((answer,), timeout)
    return _found(task, answer, timeout)


async def ais_served(task: Any, queue: Any, timeout: float | None) -> bool:  # noqa: ASYNC109 (as its twin)
    """Return whether a worker serves a task; see `ClientMethods.ais_served`."""
    answer = _request(task, queue)
    if not answer.done():
        await asyncio.wait((asyncio.wrap_future(answer),), timeout=timeout)
    return _found(task, answer, timeout)


def _request(task: Any, queue: Any) -> Future[Answer]:
    if task.app.conf.task_always_eager:
        answer: Future[Answer] = Future()
        answer.set_result(True)
        return answer
    name = queue_of_calls(task) if queue is None else str(getattr(queue, "name", queue))
    return ServedPoller.of(task.app).request(name, task.name)


def _found(task: Any, answer: Future[Answer], timeout: float | None) -> bool:
    is_late = timeout is not None and not answer.done()
    found = f"the broker has not answered within {timeout:g} s" if is_late else answer.result()
    if isinstance(found, str):
        raise OperationalError(f"{task.name}: whether it is served is not known: {found}")
    return found
