"""
Whether a worker serves a task, known without asking each time.

One thread for each app and process asks the broker while somebody wants to know, and ends a
while after the last question.  So the first question waits for the broker, and those that
follow are answered from memory.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from typing import Any

from kombu.exceptions import OperationalError

from celery_batch.broker_depth import DepthReader, can_read_depth, open_depth_reader

__all__ = ["ServedWatch", "ais_served", "is_served"]

logger = logging.getLogger(__name__)

#: Seconds for which an answer is good.
FRESH = 1.0

#: Seconds from one look to the next, and after the last question until the thread ends.
_EVERY, _IDLE = 0.4, 5.0

_LATE = "the broker has not answered within {:g} s"

#: Seconds in which workers answer where the broker itself cannot be asked.
_LISTEN = 1.0


#: Whether somebody serves a task, or why that is not known.
Answer = bool | str


class _Known:
    """What is known of one task on one queue."""

    def __init__(self) -> None:
        self.asked = 0.0
        self.answer: Future[Answer] | None = None
        self.at = float("-inf")
        #: Who waits for the next answer.
        self.waiting: list[Future[Answer]] = []


class ServedWatch:
    """
    One app's knowledge of who serves its tasks.

    Args:
        app: The Celery app.
    """

    def __init__(self, app: Any) -> None:
        self.pid = os.getpid()
        self._app = app
        self._known: dict[tuple[str, str], _Known] = {}
        self._lock = threading.Lock()
        self._asked = threading.Event()
        self._runs = False
        self._look: DepthReader | None = None

    @classmethod
    def of(cls, app: Any) -> ServedWatch:
        """Return the app's watch in this process; a fork has its own."""
        found: ServedWatch | None = app.__dict__.get("batch_served_watch")
        if found is None or found.pid != os.getpid():
            found = app.__dict__["batch_served_watch"] = cls(app)
        return found

    def ask(self, queue: str, task: str) -> Future[Answer]:
        """
        Return the answer if it is fresh, else one that is to come.

        Args:
            queue: The queue's name.
            task: The task's name.
        """
        now = time.monotonic()
        with self._lock:
            known = self._known.setdefault((queue, task), _Known())
            known.asked = now
            if known.answer is not None and now - known.at <= FRESH:
                return known.answer
            future: Future[Answer] = Future()
            known.waiting.append(future)
            starts, self._runs = not self._runs, True
        self._asked.set()
        if starts:
            self._start()
        return future

    def _start(self) -> None:
        try:
            name = "celery-batch-served"
            threading.Thread(target=self._run, name=name, daemon=True).start()
        except RuntimeError:  # the interpreter ends, or there are too many threads
            with self._lock:
                self._runs = False
            self._refresh()
            self._let_go()

    def _run(self) -> None:
        while True:
            self._asked.clear()
            self._refresh()
            with self._lock:
                now, waits = time.monotonic(), any(each.waiting for each in self._known.values())
                if not waits and all(now - each.asked > _IDLE for each in self._known.values()):
                    self._runs = False
                    self._known.clear()
                    break
            if not waits:
                self._pause()
        self._let_go()

    def _pause(self) -> None:
        """Sleep until the next look is due, or somebody waits."""
        until = time.monotonic() + _EVERY
        while (left := until - time.monotonic()) > 0 and self._asked.wait(left):
            self._asked.clear()
            with self._lock:
                if any(each.waiting for each in self._known.values()):
                    return

    def _refresh(self) -> None:
        """Look once for each that somebody has asked for of late."""
        with self._lock:
            recent = time.monotonic() - _IDLE
            wanted = [pair for pair, each in self._known.items() if each.asked >= recent]
        for pair in wanted:
            answer: Future[Answer] = Future()
            try:
                found: Answer = self._look_at(*pair)
            except Exception as error:  # noqa: BLE001 (whatever a transport raises)
                found = str(error) or type(error).__name__
            answer.set_result(found)
            with self._lock:
                known = self._known[pair]
                known.answer, known.at = answer, time.monotonic()
                waiting, known.waiting = known.waiting, []
            for each in waiting:
                if each.set_running_or_notify_cancel():
                    each.set_result(found)

    def _look_at(self, queue: str, task: str) -> bool:
        if not can_read_depth(self._app):
            return _ask_workers(self._app, queue)
        is_old = self._look is not None
        try:
            self._look = self._look or open_depth_reader(self._app)
            return self._look.is_served(queue, task)
        except Exception:
            self._let_go()
            if not is_old:
                raise
        return self._look_at(queue, task)  # it may be the connection alone that was lost

    def _let_go(self) -> None:
        look, self._look = self._look, None
        if look is not None:
            with suppress(Exception):
                look.close()


def _ask_workers(app: Any, queue: str) -> bool:
    """Ask all workers whether they consume a queue."""
    told = app.control.inspect(timeout=_LISTEN).active_queues() or {}
    return any(each["name"] == queue for queues in told.values() for each in queues)


def is_served(task: Any, queue: Any, timeout: float) -> bool:
    """
    Return whether a worker serves a task; see `ClientMethods.is_served`.

    Args:
        task: The batch task.
        queue: The queue, or its name; None for the one that the task is routed to.
        timeout: Seconds to wait for the broker.

    Raises:
        OperationalError: The broker has not answered.
    """
    if task.app.conf.task_always_eager:
        return True
    answer = ServedWatch.of(task.app).ask(_name_of(task, queue), task.name)
    try:
        found = answer.result(timeout)
    except NotYet:
        found = _LATE.format(timeout)
    return _known(task, found)


async def ais_served(task: Any, queue: Any, timeout: float) -> bool:  # noqa: ASYNC109 (as its twin)
    """
    Return whether a worker serves a task, from a coroutine.

    Args:
        task: The batch task.
        queue: As for `is_served`.
        timeout: Seconds to wait for the broker.

    Raises:
        OperationalError: The broker has not answered.
    """
    if task.app.conf.task_always_eager:
        return True
    answer = ServedWatch.of(task.app).ask(_name_of(task, queue), task.name)
    if answer.done():
        return _known(task, answer.result())
    try:
        found = await asyncio.wait_for(asyncio.wrap_future(answer), timeout)
    except TimeoutError:
        found = _LATE.format(timeout)
    return _known(task, found)


def _known(task: Any, found: Answer) -> bool:
    if isinstance(found, str):
        raise OperationalError(f"Whether {task.name} is served is not known: {found}")
    return found


def _name_of(task: Any, queue: Any) -> str:
    if queue is None:
        options = task._get_exec_options()  # noqa: SLF001 (as Celery's own calls do)
        queue = task.app.amqp.router.route(options, task.name)["queue"]
    return str(getattr(queue, "name", queue))
