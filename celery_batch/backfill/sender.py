"""Sends the rows of a backfill to workers, and receives their results."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from celery import states
from celery.backends.base import DisabledBackend
from kombu.exceptions import EncodeError, OperationalError

from celery_batch.backfill.window import Answered, Parcel
from celery_batch.cluster.control_client import ControlClient, impatient_connection
from celery_batch.config import max_queue_of
from celery_batch.errors import BackfillError, BatchError, ChunkFailed, QueueFull

__all__ = [
    "Sender",
    "queue_of",
    "reach",
    "unserved",
]


log = logging.getLogger(__name__)


def queue_of(task: Any, options: dict[str, Any]) -> str:
    """
    Return the name of the queue where a task's messages go.

    Args:
        task: The batch task.
        options: Celery's, for each call.
    """
    options = {**task._get_exec_options(), **options}  # noqa: SLF001
    return str(task.app.amqp.router.route(options, task.name)["queue"].name)


def unserved(task: Any, options: dict[str, Any]) -> str:
    """
    Return in words that no worker reads the queue of a task.

    Args:
        task: The batch task.
        options: Celery's, for each call.

    Returns:
        "" if one does, or if nobody can be asked.
    """
    app, queue = task.app, queue_of(task, options)
    try:
        if task.is_served(queue):
            return ""
    except OperationalError as error:
        log.debug("Could not ask who is there: %r", error)
        return ""
    usual = queue == app.conf.task_default_queue
    start = f"celery -A {app.main or 'APP'} worker" + ("" if usual else f" -Q {queue}")
    return (
        f"No worker answers for {task.name}: none reads its queue {queue!r}; start one with {start}"
    )


def reach(task: Any) -> None:
    """
    Do nothing if broker and result backend can be reached.

    Args:
        task: The batch task.

    Raises:
        Exception: Whatever a transport raises when one cannot.
    """
    if task.app.conf.task_always_eager:
        return
    with impatient_connection(task.app) as connection:
        connection.ensure_connection(max_retries=1, interval_start=0, interval_max=0)
    ping = getattr(getattr(task.backend, "client", None), "ping", None)
    if ping is not None:
        ping()


#: Seconds for which workers are listened to who say what they have.
_ROLL_CALL = 2.0


#: Seconds for which a worker that has answered counts as one that works for us.
_LATELY = 30.0


#: Seconds in which more answers may come, to be dealt with together.
_MOMENT = 0.01


#: Results that are forgotten together: what has been handed over is not held for long.
_FEW = 8


#: Raised of what no message can be made of.
_UNWRITABLE = (EncodeError, TypeError, ValueError, RecursionError)


#: A parcel and its rows' answers, None if it failed as a whole.
Arrival = tuple[Parcel, list[Answered] | None]


class Sender:
    """
    Sends parcels as tasks, and hands over their answers as they come.

    A parcel of many rows is one chunk.  What has been handed over is deleted where
    results are stored: nobody will ask for it again, and there may be millions.

    Args:
        task: The batch task.
        options: Celery's, for each call; answers are wanted whatever they say.

    Raises:
        BackfillError: The task's app has no result backend.
    """

    def __init__(self, task: Any, options: dict[str, Any]) -> None:
        if isinstance(task.backend, DisabledBackend):
            raise BackfillError(f"{task.name}: its app has no result backend for the answers")
        self._task = task
        self._options = {**options, "ignore_result": False}
        self._ended: SimpleQueue[Any] = SimpleQueue()
        self._flying: dict[Any, tuple[Parcel, Any, int]] = {}
        self._sent = 0
        #: The number of the latest one sent that has been answered.
        self._latest = 0
        self._is_cut_off = False
        #: Whether anything was sent: until then a lost connection is not found out soon.
        self.has_begun = False
        self._refused: list[Arrival] = []
        self._workers: dict[str, float] = {}

    def workers(self) -> int:
        """Return how many workers have answered lately, as far as they have said who they are."""
        now = time.monotonic()
        return sum(now - heard < _LATELY for heard in self._workers.values())

    def send(self, parcels: Sequence[Parcel]) -> list[Parcel]:
        """
        Send parcels; return those that the broker did not take, or has no room for yet.

        Args:
            parcels: Of one row or many.
        """
        if parcels and not (self.has_begun or self._is_reachable()):
            return list(parcels)
        together = list(self._together(parcels))
        for n, some in enumerate(together):
            try:
                self._send(some)
            except (OperationalError, QueueFull) as error:  # some may be there, answered in vain
                self._unreachable(error)
                taken = self._taken()
                return [parcel for rest in together[n:] for parcel in rest if parcel not in taken]
        return []

    def _together(self, parcels: Sequence[Parcel]) -> Iterator[list[Parcel]]:
        """Yield what is written together: all of one row, and all of many if any may wait."""
        yield [parcel for parcel in parcels if parcel.is_single]
        chunks = [parcel for parcel in parcels if not parcel.is_single]
        if max_queue_of(self._task.app, self._task) is None:
            yield chunks
        else:  # each is let in by itself
            yield from ([parcel] for parcel in chunks)

    def _taken(self) -> set[Parcel]:
        """Return the parcels that the broker has surely taken, and those that have ended."""
        flying = {parcel for parcel, *_ in self._flying.values()}
        return flying | {parcel for parcel, _ in self._refused}

    def _is_reachable(self) -> bool:
        try:
            reach(self._task)
        except Exception as error:  # noqa: BLE001 (whatever a transport raises)
            self._unreachable(error)
            return False
        return True

    def _send(self, parcels: Sequence[Parcel]) -> None:
        """Send parcels of one row each, or of many; what cannot be written has ended."""
        try:
            results = self._called(parcels)
        except _UNWRITABLE as error:
            if isinstance(error, BatchError):
                raise  # it is the task's settings, not a row
            if len(parcels) == 1:
                self._refused.append((parcels[0], _refusal(parcels[0], error)))
            taken = self._taken()
            for parcel in [each for each in parcels if each not in taken]:
                self._send([parcel])
            return
        for parcel, result in zip(parcels, results, strict=True):
            self._expect(parcel, result)

    def _called(self, parcels: Sequence[Parcel]) -> Sequence[Any]:
        try:
            return self._call(parcels)
        except OperationalError as error:  # it says what was sent, if anything was
            places, cause = getattr(error, "places", {}), error.__cause__
            for place, result in places.items():
                self._expect(parcels[place], result)
            if places and isinstance(cause, _UNWRITABLE):
                raise cause from None  # the broker is well, and another parcel is not
            raise

    def _call(self, parcels: Sequence[Parcel]) -> Sequence[Any]:
        if all(parcel.is_single for parcel in parcels):
            calls = [(parcel.rows[0].values, None) for parcel in parcels]
            return self._task.apply_many(calls, **self._options) if calls else []
        chunks = [parcel.columns for parcel in parcels]
        if len(chunks) == 1:
            return [self._task.apply_rows(*chunks[0], **self._options)]
        return list(self._task._apply_chunks(chunks, self._options))  # noqa: SLF001 (our own)

    def arrivals(
        self, timeout: float, may_wait: Callable[[], bool] = lambda: False
    ) -> Iterator[Arrival]:
        """
        Yield parcels whose tasks have ended, each with its answers; None if it failed as a whole.

        Args:
            timeout: Seconds to wait for the first one.
            may_wait: Says after each whether the next is worth the rest of a moment.
        """
        found, self._refused = self._refused, []
        yield from found
        known: list[Any] = []
        try:
            task_id = self._ended.get(timeout=0.0 if found else timeout)
            until = time.monotonic() + _MOMENT
            while True:
                if task_id in self._flying:
                    parcel, result, number = self._flying.pop(task_id)
                    self._latest = max(self._latest, number)
                    yield parcel, _answers(parcel, result)
                    self._note(result)
                    known.append(result)
                    if len(known) == _FEW:
                        self._forget(known)
                wait = until - time.monotonic() if may_wait() else 0.0
                task_id = self._ended.get(timeout=max(0.0, wait))
        except Empty:
            if known:
                self._forget(known)

    def _forget(self, results: list[Any]) -> None:
        try:
            self._task._forget_many(results)  # noqa: SLF001 (our own)
        except Exception as error:  # noqa: BLE001 (we have it; what is stored expires in the end)
            log.debug("Could not delete the results of %d messages: %s", len(results), error)
        results.clear()

    def recall(self) -> list[Parcel]:
        """Give up all that is on its way, revoke it, and return it."""
        return self._give_up(list(self._flying))

    def lost(self) -> list[Parcel]:
        """
        Give up what neither the broker nor a worker has any more, and return it.

        A worker that cannot be asked is taken to have nothing.  While messages wait in the
        queue ours may be among them: then what one that was sent later has overtaken is
        lost, and if there is none, the first is sent again, to overtake what is.
        """
        try:
            gone = self._gone() if self._flying else []
        except Exception as error:  # noqa: BLE001 (whatever it is, we ask again later)
            self._unreachable(error)
            return []
        return self._give_up(gone)

    def _gone(self) -> list[Any]:
        are_waiting, held = self._waiting() > 0, self._held()
        if are_waiting and held is None:
            return []  # there is nobody who could have answered
        gone = [
            task_id
            for task_id, (_, result, _) in self._flying.items()
            if task_id not in (held or ()) and not result.ready()
        ]
        if are_waiting:
            overtaken = [each for each in gone if self._flying[each][2] < self._latest]
            return overtaken or gone[:1]
        return gone

    def _give_up(self, task_ids: list[Any]) -> list[Parcel]:
        parcels = [self._flying.pop(task_id)[0] for task_id in task_ids]
        if task_ids:
            control_client = ControlClient(
                self._task.app
            )  # Celery's `revoke` waits for a broker that hangs
            try:
                control_client.tell("revoke", task_id=task_ids)
            except Exception as error:  # noqa: BLE001 (it runs in vain)
                log.debug("Could not revoke %d messages: %s", len(task_ids), error)
            finally:
                control_client.close()
        return parcels

    def _waiting(self) -> int:
        """Return how many messages wait in the broker's queue."""
        queue = queue_of(self._task, self._options)
        with self._task.app.connection_for_read() as connection:
            channel = connection.channel()
            try:
                return int(channel.queue_declare(queue, passive=True).message_count)
            except connection.channel_errors:
                return 0  # there is no such queue any more

    def _held(self) -> set[Any] | None:
        """Return the ids of those that workers say they have; None if no worker says anything."""
        inspect = self._task.app.control.inspect(timeout=_ROLL_CALL)
        told = inspect.query_task(*self._flying)
        if not told:
            return None
        return {task_id for tasks in told.values() if isinstance(tasks, dict) for task_id in tasks}

    def _unreachable(self, error: Exception) -> None:
        if isinstance(error, QueueFull):
            return  # others have filled it; there will be room
        if not self._is_cut_off:
            log.warning("The broker cannot be reached, and is tried again: %s", error)
        self._is_cut_off = True

    def _note(self, result: Any) -> None:
        facts = getattr(result, "batch", None)  # None where the backend tells nobody
        if facts is not None:
            self._workers[facts.worker] = time.monotonic()

    def _expect(self, parcel: Parcel, result: Any) -> None:
        self._is_cut_off, self.has_begun = False, True
        self._sent += 1
        self._flying[result.id] = (parcel, result, self._sent)
        result.future().add_done_callback(lambda _: self._ended.put(result.id))


def _answers(parcel: Parcel, result: Any) -> list[Answered] | None:
    value = result.result
    if parcel.is_single:
        (row,) = parcel.rows
        is_well = result.state == states.SUCCESS
        return [Answered(row, value) if is_well else Answered(row, error=_said(value))]
    if result.state == states.SUCCESS:
        return [Answered(row, output) for row, output in zip(parcel.rows, value, strict=True)]
    if not isinstance(value, ChunkFailed) or len(value.outputs) != len(parcel):
        return None
    failures = value.failures
    return [
        Answered(row, error=failures[n]) if n in failures else Answered(row, output)
        for n, (row, output) in enumerate(zip(parcel.rows, value.outputs, strict=True))
    ]


def _refusal(parcel: Parcel, error: Exception) -> list[Answered] | None:
    return [Answered(parcel.rows[0], error=_said(error))] if parcel.is_single else None


def _said(error: Any) -> str:
    return f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
