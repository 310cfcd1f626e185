"""Sends the rows of a backfill to workers, and receives their results."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from queue import Empty, SimpleQueue
from typing import Any

from celery import states
from celery.backends.base import DisabledBackend
from kombu.exceptions import EncodeError, OperationalError

from celery_batch.backfill.window import Answer, Chunk
from celery_batch.cluster.control_client import ControlClient, impatient_connection
from celery_batch.compat.deadline import waiting_until
from celery_batch.compat.tasks import queue_of_calls
from celery_batch.config import max_queue_of
from celery_batch.errors import BackfillError, BatchError, ChunkFailed, QueueFull
from celery_batch.protocol import NEEDS_ANSWER, QUIETLY, SENT

__all__ = ["Sender", "unserved"]

log = logging.getLogger(__name__)

#: Seconds to wait for workers that say which tasks they have.
_REPLY_TIMEOUT = 2.0

#: Seconds to revoke what is pending at the end.
_REVOKE_TIMEOUT = 1.5

#: Seconds for which a worker that has answered is counted.
_LATELY = 30.0

#: Seconds in which more results may come, to be taken together.
_TOGETHER = 0.01

#: Results that are deleted together; few, so that none is kept for long.
_DELETED_TOGETHER = 8

#: Raised where no message can be made of the values.
_UNWRITABLE = (EncodeError, TypeError, ValueError, RecursionError)

#: A chunk whose task has ended, and its rows' answers; None if it failed as a whole.
Completed = tuple[Chunk, list[Answer] | None]


def unserved(task: Any, options: dict[str, Any]) -> str:
    """Return in words that no worker reads a task's queue; "" if one does, or none can tell."""
    app, queue = task.app, queue_of_calls(task, options)
    try:
        if task.is_served(queue):
            return ""
    except OperationalError as error:
        log.debug("Could not ask the workers: %r", error)
        return ""
    usual = queue == app.conf.task_default_queue
    start = f"celery -A {app.main or 'APP'} worker" + ("" if usual else f" -Q {queue}")
    return (
        f"No worker answers for {task.name}: none reads its queue {queue!r}; start one with {start}"
    )


class Sender:
    """Sends chunks as tasks, and returns their answers as they come."""

    def __init__(self, task: Any, options: dict[str, Any]) -> None:
        if isinstance(task.backend, DisabledBackend):
            raise BackfillError(f"{task.name}: its app has no result backend for the answers")
        self._task = task
        headers = {**(options.get("headers") or {}), NEEDS_ANSWER: True}
        if task.target_latency is not None:  # rows may wait, and must run however late they are
            headers[SENT] = 0
        self._options = {**options, "ignore_result": False, "headers": headers}
        self._ended: SimpleQueue[Any] = SimpleQueue()
        #: Each chunk that was sent with its result, its number and its future, by task id.
        self._pending: dict[Any, tuple[Chunk, Any, int, Any]] = {}
        self._sent = 0
        #: The highest number of a chunk that was answered.
        self._latest = 0
        self._is_cut_off = False
        self._refused: list[Completed] = []
        self._workers: dict[str, float] = {}

    @property
    def has_sent(self) -> bool:
        """Whether anything was sent."""
        return self._sent > 0

    def workers(self) -> int:
        """Return how many workers have answered lately, as far as their results name them."""
        now = time.monotonic()
        return sum(now - at < _LATELY for at in self._workers.values())

    def send(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """Send chunks; return those that the broker did not take, or has no room for yet."""
        # Before the first one is sent, a broker that is away would be noticed late.
        if not (self.has_sent or self._can_connect()):
            return list(chunks)
        groups = list(self._groups(chunks))
        for n, group in enumerate(groups):
            try:
                self._send(group)
            except (OperationalError, QueueFull) as error:  # some may be sent, and run in vain
                self._note_outage(error)
                taken = self._taken()
                return [chunk for rest in groups[n:] for chunk in rest if chunk not in taken]
        return []

    def _groups(self, chunks: Sequence[Chunk]) -> Iterator[list[Chunk]]:
        """Yield what is written together: all single rows, and all others if there is no limit."""
        yield [chunk for chunk in chunks if chunk.is_single]
        others = [chunk for chunk in chunks if not chunk.is_single]
        task = self._task
        if max_queue_of(task.app, task) is None and task.max_queue_cost is None:
            yield others
        else:  # the limit is checked for each
            yield from ([chunk] for chunk in others)

    def _taken(self) -> set[Chunk]:
        """Return the chunks that the broker has surely taken, and those that have ended."""
        sent = {chunk for chunk, *_ in self._pending.values()}
        return sent | {chunk for chunk, _ in self._refused}

    def _can_connect(self) -> bool:
        task = self._task
        if task.app.conf.task_always_eager:
            return True
        try:
            with impatient_connection(task.app) as connection:
                connection.ensure_connection(max_retries=1, interval_start=0, interval_max=0)
            if ping := getattr(getattr(task.backend, "client", None), "ping", None):
                ping()
        except Exception as error:  # noqa: BLE001 (whatever a transport raises)
            self._note_outage(error)
            return False
        return True

    def _send(self, chunks: Sequence[Chunk]) -> None:
        """Send single rows, or chunks of many; those that cannot be written have ended."""
        try:
            results = self._call(chunks)
        except OperationalError as error:  # it says what was sent, if anything was
            places: dict[int, Any] = getattr(error, "places", {})
            for place, result in places.items():
                self._add_pending(chunks[place], result)
            cause = error.__cause__
            if not (places and isinstance(cause, _UNWRITABLE)):
                raise
            if isinstance(cause, BatchError):
                raise cause from None
            self._send_separately(chunks, cause)  # the broker is there
        except BatchError:
            raise  # it is the task's settings, not a row
        except _UNWRITABLE as error:
            self._send_separately(chunks, error)
        else:
            for chunk, result in zip(chunks, results, strict=True):
                self._add_pending(chunk, result)

    def _send_separately(self, chunks: Sequence[Chunk], error: BaseException) -> None:
        if len(chunks) == 1:
            (chunk,) = chunks
            answers = [Answer(chunk.rows[0], error=_text(error))] if chunk.is_single else None
            self._refused.append((chunk, answers))
        taken = self._taken()
        for chunk in [each for each in chunks if each not in taken]:
            self._send([chunk])

    def _call(self, chunks: Sequence[Chunk]) -> Sequence[Any]:
        if all(chunk.is_single for chunk in chunks):
            calls = [(chunk.rows[0].values, None) for chunk in chunks]
            return self._task.apply_many(calls, **self._options) if calls else []
        columns = [self._task._as_called(chunk.columns) for chunk in chunks]
        if len(columns) == 1:
            return [self._task.apply_rows(*columns[0], **self._options)]
        return list(self._task._apply_chunks(columns, self._options))

    def completed(
        self, timeout: float, may_wait: Callable[[], bool] = lambda: False
    ) -> Iterator[Completed]:
        """Yield chunks whose tasks have ended, with their answers, while it `may_wait` for more."""
        refused, self._refused = self._refused, []
        yield from refused
        results: list[Any] = []
        try:
            task_id = self._ended.get(timeout=0.0 if refused else timeout)
            until = time.monotonic() + _TOGETHER
            while True:
                if task_id in self._pending:
                    chunk, result, number, _ = self._pending.pop(task_id)
                    self._latest = max(self._latest, number)
                    yield chunk, _answers(chunk, result)
                    self._note_worker(result)
                    results.append(result)
                    if len(results) == _DELETED_TOGETHER:
                        self._forget(results)
                wait = until - time.monotonic() if may_wait() else 0.0
                task_id = self._ended.get(timeout=max(0.0, wait))
        except Empty:
            if results:
                self._forget(results)

    def _forget(self, results: list[Any]) -> None:
        # Nothing else asks for them, and there may be millions.
        try:
            self._task._forget_many(results)
        except Exception as error:  # noqa: BLE001 (they expire in the end)
            log.debug("Could not delete the results of %d messages: %s", len(results), error)
        results.clear()

    def revoke(self) -> list[Chunk]:
        """Revoke all pending tasks, unless the broker hangs, and return their chunks."""
        with waiting_until(time.monotonic() + _REVOKE_TIMEOUT):
            return self._revoke(list(self._pending))

    def take_lost(self) -> list[Chunk]:
        """Revoke what neither the broker nor a worker has any more, and return it."""
        try:
            lost = self._lost() if self._pending else []
        except Exception as error:  # noqa: BLE001 (whatever a transport raises; asked again later)
            self._note_outage(error)
            return []
        return self._revoke(lost)

    def _lost(self) -> list[Any]:
        with closing(ControlClient(self._task.app)) as client:
            queue = queue_of_calls(self._task, self._options)
            are_waiting = client.depths([queue])[queue] > 0
            ids = {"ids": [*self._pending]}
            replies = client.ask("query_task", _REPLY_TIMEOUT, arguments=ids).values()
        if are_waiting and not replies:
            return []  # there is no worker that could have answered
        held = {task_id for tasks in replies for task_id in tasks}
        lost = [
            task_id
            for task_id, (_, result, *_) in self._pending.items()
            if task_id not in held and not result.ready()
        ]
        # Those that wait in the queue may be ours: a chunk is lost if a later one was answered; if
        # there is none, the first is sent again, to find out.
        if are_waiting:
            overtaken = [each for each in lost if self._pending[each][2] < self._latest]
            return overtaken or lost[:1]
        return lost

    def _revoke(self, task_ids: list[Any]) -> list[Chunk]:
        revoked = [self._pending.pop(task_id) for task_id in task_ids]
        for *_, future in revoked:
            future.cancel()  # else it is polled for as long as this process lives
        if task_ids:
            # Celery's own `revoke` waits for a broker that hangs.  Quietly: workers store no
            # state of what they do not have, because no caller asks for it.
            with closing(ControlClient(self._task.app)) as client:
                try:
                    client.broadcast("revoke", task_id=task_ids, **{QUIETLY: True})
                except Exception as error:  # noqa: BLE001 (then they run in vain)
                    log.debug("Could not revoke %d messages: %s", len(task_ids), error)
        return [chunk for chunk, *_ in revoked]

    def _note_outage(self, error: Exception) -> None:
        if isinstance(error, QueueFull):
            return  # there will be room
        if not self._is_cut_off:
            log.warning("The broker cannot be reached, and is tried again: %s", error)
        self._is_cut_off = True

    def _note_worker(self, result: Any) -> None:
        info = getattr(result, "batch_info", None)  # some backends do not store it
        if info is not None:
            self._workers[info.worker] = time.monotonic()

    def _add_pending(self, chunk: Chunk, result: Any) -> None:
        self._is_cut_off = False
        self._sent += 1
        future = result.future()
        self._pending[result.id] = (chunk, result, self._sent, future)
        future.add_done_callback(lambda _: self._ended.put(result.id))


def _answers(chunk: Chunk, result: Any) -> list[Answer] | None:
    value = result.result
    has_succeeded = result.state == states.SUCCESS
    if chunk.is_single:
        (row,) = chunk.rows
        if has_succeeded:
            return [Answer(row, value)]
        failures = value.failures if isinstance(value, ChunkFailed) else {}
        return [Answer(row, error=failures.get(0, _text(value)))]
    if has_succeeded:
        return [Answer(row, output) for row, output in zip(chunk.rows, value, strict=True)]
    if not isinstance(value, ChunkFailed) or len(value.outputs) != len(chunk):
        return None
    failures = value.failures
    return [
        Answer(row, error=failures[n]) if n in failures else Answer(row, output)
        for n, (row, output) in enumerate(zip(chunk.rows, value.outputs, strict=True))
    ]


def _text(error: Any) -> str:
    return f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
