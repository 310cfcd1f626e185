"""
Whether a worker serves a task, known without asking the broker for each call.

One thread for each app and process polls the broker while calls ask, and ends a while after
the last one.  So the first call waits for the broker, and those that follow are answered from
memory.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from kombu.exceptions import OperationalError

from celery_batch.broker_depth import DepthReader, can_read_depth, open_depth_reader
from celery_batch.client.background import OnDemandThread, PerProcess

__all__ = ["ServedWatch", "ais_served", "is_served"]

#: Seconds for which an answer is good.
FRESH = 1.0

#: Seconds between two polls, and after the last call that asked until polling ends.
_INTERVAL, _LINGER = 0.4, 5.0

#: Seconds in which workers answer where the broker itself cannot be asked.
_INSPECT_TIMEOUT = 1.0

_LATE = "the broker has not answered within {:g} s"

#: Whether a worker serves a task, or why that is not known.
Answer = bool | str


class _Known:
    """What is known of one task on one queue."""

    def __init__(self) -> None:
        self.asked = 0.0
        self.answer: Future[Answer] | None = None
        self.answered = float("-inf")
        #: Of callers that wait for the next answer.
        self.waiting: list[Future[Answer]] = []


class ServedWatch(PerProcess):
    """What is known of the workers that serve one app's tasks."""

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self._known: dict[tuple[str, str], _Known] = {}
        self._lock = threading.Lock()
        self._thread = OnDemandThread("celery-batch-served", self._work, self._close_reader)
        self._reader: DepthReader | None = None

    def ask(self, queue: str, task: str) -> Future[Answer]:
        """Return the answer for a task on a queue if it is fresh, else one that is to come."""
        now = time.monotonic()
        with self._lock:
            known = self._known.setdefault((queue, task), _Known())
            known.asked = now
            if known.answer is not None and now - known.answered <= FRESH:
                return known.answer
            future: Future[Answer] = Future()
            known.waiting.append(future)
        try:
            self._thread.wake()
        except RuntimeError:  # the interpreter is ending, or there are too many threads
            self._work()
            self._close_reader()
        return future

    def _work(self) -> float | None:
        """Poll once for each pair that was asked for of late; return when to do so again."""
        with self._lock:
            recent = time.monotonic() - _LINGER
            wanted = [pair for pair, each in self._known.items() if each.asked >= recent]
            if not wanted:
                self._known.clear()
                return None
        for pair in wanted:
            self._poll(pair)
        with self._lock:
            return 0.0 if any(each.waiting for each in self._known.values()) else _INTERVAL

    def _poll(self, pair: tuple[str, str]) -> None:
        answer: Future[Answer] = Future()
        try:
            found: Answer = self._read(*pair)
        except Exception as error:  # noqa: BLE001 (whatever a transport raises)
            found = str(error) or type(error).__name__
        answer.set_result(found)
        with self._lock:
            known = self._known[pair]
            known.answer, known.answered = answer, time.monotonic()
            waiting, known.waiting = known.waiting, []
        for each in waiting:
            if each.set_running_or_notify_cancel():
                each.set_result(found)

    def _read(self, queue: str, task: str) -> bool:
        if not can_read_depth(self._app):
            return _ask_workers(self._app, queue)
        was_open = self._reader is not None
        try:
            self._reader = self._reader or open_depth_reader(self._app)
            return self._reader.is_served(queue, task)
        except Exception:
            self._close_reader()
            if not was_open:
                raise
        return self._read(queue, task)  # it may be the connection alone that was lost

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            with suppress(Exception):
                reader.close()


def _ask_workers(app: Any, queue: str) -> bool:
    """Ask all workers whether they consume a queue."""
    active = app.control.inspect(timeout=_INSPECT_TIMEOUT).active_queues() or {}
    return any(each["name"] == queue for queues in active.values() for each in queues)


def is_served(task: Any, queue: Any, timeout: float) -> bool:
    """Return whether a worker serves a task; see `ClientMethods.is_served`."""
    if task.app.conf.task_always_eager:
        return True
    answer = ServedWatch.of(task.app).ask(_name_of(task, queue), task.name)
    try:
        found = answer.result(timeout)
    except TimeoutError:
        found = _LATE.format(timeout)
    return _checked(task, found)


async def ais_served(task: Any, queue: Any, timeout: float) -> bool:  # noqa: ASYNC109 (as its twin)
    """Return whether a worker serves a task; see `ClientMethods.ais_served`."""
    if task.app.conf.task_always_eager:
        return True
    answer = ServedWatch.of(task.app).ask(_name_of(task, queue), task.name)
    if answer.done():
        return _checked(task, answer.result())
    try:
        found = await asyncio.wait_for(asyncio.wrap_future(answer), timeout)
    except TimeoutError:
        found = _LATE.format(timeout)
    return _checked(task, found)


def _checked(task: Any, found: Answer) -> bool:
    if isinstance(found, str):
        raise OperationalError(f"Whether {task.name} is served is not known: {found}")
    return found


def _name_of(task: Any, queue: Any) -> str:
    if queue is None:
        options = task._get_exec_options()  # noqa: SLF001 (as Celery's own calls do)
        queue = task.app.amqp.router.route(options, task.name)["queue"]
    return str(getattr(queue, "name", queue))
