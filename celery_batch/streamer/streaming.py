"""
What streamers of one machine have in common: how they are asked, begun and ended.

A streamer belongs to the process that uses it.  Made before a fork, as in a web server
that preloads its application, it begins anew in each copy that uses it.
"""

from __future__ import annotations

import _thread
import asyncio
import atexit
import contextlib
import logging
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Protocol, Self

from celery_batch.batching.policy import BatchPolicy
from celery_batch.errors import BatchError, ConfigurationError, StreamerClosed
from celery_batch.streamer.answer import Answer, Desk
from celery_batch.streamer.intake import Intake
from celery_batch.streamer.whole import Whole

__all__ = ["GRACE", "Crew", "Streaming", "end_at_exit"]

logger = logging.getLogger(__name__)

#: Seconds that batches get to finish when their streamer ends.
GRACE = 5.0

_CLOSED = "the streamer's workers were destroyed; make a new one to go on"
_FORKED = "the request was made before this process was forked; its answer went to the parent"


class Crew(Protocol):
    """The workers of a streamer."""

    def stop(self, grace: float) -> None:
        """End them, after what they are running or so many seconds."""


class Streaming(ABC):
    """
    The caller's side of a streamer.

    Args:
        batch_size: Most items in one call of the model.
        max_latency: Most seconds an item waits for company while a worker is idle.
        worker_timeout: Most seconds to wait for an answer.
        max_queue: Most items that may wait in line; None for any number.
    """

    def __init__(
        self, batch_size: int, max_latency: float, worker_timeout: float, max_queue: int | None
    ) -> None:
        if max_queue is not None and max_queue < 1:
            raise ConfigurationError(f"max_queue: must be at least 1, or None, got {max_queue!r}")
        self.policy = BatchPolicy(batch_size, max_latency)
        self.worker_timeout = worker_timeout
        self.max_queue = max_queue
        self._size = batch_size
        self._intake: Intake | None = None
        self._crew: Crew | None = None
        self._is_closed = False
        self._former: list[object] = []
        _streamers.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.destroy_workers()

    @abstractmethod
    def _hire(self, intake: Intake) -> Crew:
        """Start workers that take their batches there."""

    def submit(self, batch: Iterable[Any]) -> Answer:
        """
        Ask for the outputs of some items, and do not wait for them.

        Args:
            batch: One item or more.

        Returns:
            A `concurrent.futures.Future` of their outputs, in order.

        Raises:
            QueueFull: ``max_queue`` items wait already.
            LoadFailed: The model could not be loaded.
            StreamerClosed: The workers were destroyed.
        """
        items = list(batch)
        intake = self._intake or self._begin()
        rows = len(items)
        if 0 < rows <= self._size:
            answer = Answer(items, intake.desk)
            intake.add((answer,), rows)
            return answer
        starts = range(0, rows, self._size)
        parts = [Answer(items[each : each + self._size], intake.desk) for each in starts]
        intake.add(parts, rows)
        return Whole(parts, intake.desk)

    def predict(self, batch: Iterable[Any]) -> list[Any]:
        """
        Return the outputs for some items, in order.

        Args:
            batch: One item or more.

        Raises:
            TimeoutError: They did not come within ``worker_timeout``; the request is given up.
            QueueFull: ``max_queue`` items wait already.
            Exception: What the model raised.
        """
        answer = self.submit(batch)
        try:
            return answer.result()
        except BaseException:
            answer.cancel()  # nobody else can ask for it
            raise

    async def apredict(self, batch: Iterable[Any]) -> list[Any]:
        """
        Return the outputs for some items, in order, while the event loop does other things.

        Args:
            batch: One item or more.

        Raises:
            TimeoutError: They did not come within ``worker_timeout``; the request is given up.
            QueueFull: ``max_queue`` items wait already.
            Exception: What the model raised.
        """
        answer = asyncio.wrap_future(self.submit(batch))
        async with asyncio.timeout(self.worker_timeout):
            return await answer

    def destroy_workers(self) -> None:
        """End the workers, after what they are running; what waits in line fails."""
        with self._gate():
            self._is_closed = True
        self._end(GRACE)

    def _gate(self) -> threading.Lock:
        """Return the lock for beginning and ending, made at its first use in this process."""
        # A web server may fork first and have gevent patch afterwards, and a lock of before
        # would stop all greenlets.  Who gets here second finds what the first has made.
        made: threading.Lock = self.__dict__.setdefault("_gate_made", threading.Lock())
        return made

    def _begin(self) -> Intake:
        """Return this process's intake, its workers hired."""
        with self._gate():
            if self._intake is None:
                if self._is_closed:
                    raise StreamerClosed(_CLOSED)
                intake = Intake(self.policy, Desk(self.worker_timeout), self.max_queue)
                self._crew = self._hire(intake)
                self._intake = intake
                weakref.finalize(self, _let_go, intake, self._crew).atexit = False
            return self._intake

    def _end(self, grace: float) -> None:
        intake, crew = self._intake, self._crew
        if intake is not None:
            intake.close(StreamerClosed(_CLOSED))
        if crew is not None:
            crew.stop(grace)

    def _forget(self) -> None:
        """In a forked copy of this process: the workers are not ours, and some locks are stuck."""
        self.__dict__.pop("_gate_made", None)
        if self._intake is not None:
            # Kept, since to throw it away would disturb pipes that we share with the parent.
            self._former += [self._intake, self._crew]
            self._intake.abandon(BatchError(_FORKED))
        self._intake = self._crew = None


_streamers: weakref.WeakSet[Streaming] = weakref.WeakSet()

#: Of streamers that nobody holds any more, while somebody may wait for their last answers.
_leaving: list[tuple[Intake, Crew]] = []

#: The same, of the process that we are a fork of: to throw them away would disturb its pipes.
_former: list[tuple[Intake, Crew]] = []


def _let_go(intake: Intake, crew: Crew) -> None:
    """Answer those who wait still; called by the garbage collector, in the midst of anything."""
    if not intake.is_open:
        return
    _leaving.append((intake, crew))
    with contextlib.suppress(RuntimeError):  # the interpreter is ending
        _thread.start_new_thread(_see_off, (intake, crew))  # which takes no lock, as a Thread does


def _see_off(intake: Intake, crew: Crew) -> None:
    intake.drain(StreamerClosed(_CLOSED))
    while not intake.wait_until_closed(None):
        pass
    _leaving.remove((intake, crew))


def _after_fork() -> None:
    for streamer in list(_streamers):
        streamer._forget()  # noqa: SLF001 - same module, and nobody else's business
    _former.extend(_leaving)
    _leaving.clear()
    for intake, _ in _former:
        intake.abandon(BatchError(_FORKED))


def _at_exit() -> None:
    for streamer in list(_streamers):
        streamer.destroy_workers()
    for intake, crew in _leaving:
        intake.close(StreamerClosed(_CLOSED))
        crew.stop(GRACE)


def end_at_exit() -> None:
    """End all streamers when the program ends, before whoever has asked for the same by now."""
    getattr(threading, "_register_atexit", atexit.register)(_at_exit)


os.register_at_fork(after_in_child=_after_fork)
end_at_exit()
