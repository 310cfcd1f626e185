"""
The bookkeeping of a pool process, beside its main thread, which only runs models.

Rule 1: a clerk is a thread that reads a batch, enters its tracers, has the main
        thread run the model, and settles what came of it; only then it reads on.
        There are three: one settles a batch while another makes the next one ready, and
        the third makes one ready that is more urgent.
Rule 2: the pool hears what it always hears: that a batch is taken up when its model
        is about to run, and that it is done when its results are stored.
Rule 3: nothing of ours goes on beside an ordinary task.
Rule 4: what the pool was told is running gets its end before this process exits.
Rule 5: a lone batch is the main thread's from beginning to end, as in any pool: to hand
        it on and take it back would cost more than there is to do beside it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from contextlib import suppress
from pickle import dumps
from queue import Empty
from typing import Any

import billiard
from billiard.common import terminate_handler_fired
from billiard.einfo import ExceptionInfo
from billiard.pool import ACK, READY, TASK, MaybeEncodingError

from celery_batch.worker import interpreter
from celery_batch.worker.batch_end import error_info
from celery_batch.worker.hand_over import HandOver
from celery_batch.worker.overlap import may_overlap
from celery_batch.worker.reading import Reading
from celery_batch.worker.settle import run_batch, run_lone_batch, settle
from celery_batch.worker.softlimit import LimitSignals
from celery_batch.worker.turn import Turn

__all__ = ["employ"]

logger = logging.getLogger(__name__)

#: For the batch that is settled, the one that runs or lies ready, and an urgent one.
_CLERKS = 3

#: Bytes.  Tracers are nested, and a thread's stack does not grow by itself as the
#: main thread's does; what is not used of it costs address space only.
_STACK = 64 << 20

#: Seconds that batches get to be settled in a process that was told to terminate.
_LAST_MOMENT = 1.0


def employ(app: Any) -> None:
    """
    Have clerks do the bookkeeping of this pool process from now on.

    Args:
        app: The Celery app.
    """
    worker: Any = getattr(billiard.current_process(), "_target", None)
    known = ("wait_for_job", "inq", "outq", "inqW_fd", "_ensure_messages_consumed")
    missing = [name for name in known if not hasattr(worker, name)]
    if missing:
        logger.warning("This billiard has no %s: batches run one after another", missing)
    elif worker.synq is None and worker.maxtasks != 1:
        _Clerks(app, worker).take_over()


class _Ordinary:
    """A job that is no batch of ours, and that nothing is done beside."""

    def __init__(self, job: tuple[Any, ...]) -> None:
        self.job = job
        self.done = threading.Event()


#: What a clerk has read: a job, or what ends the process.
_Read = Turn | _Ordinary | BaseException


class _Clerks:
    """
    The clerks of this process.

    Args:
        app: The Celery app.
        worker: Billiard's, whose loop runs on the main thread.
    """

    def __init__(self, app: Any, worker: Any) -> None:
        self._app = app
        self._worker = worker
        self._put = worker.outq.put
        self._ensure_heard = worker._ensure_messages_consumed  # noqa: SLF001
        self._signals = LimitSignals()
        #: Asked under `_reading` by clerks.
        self._turns = Reading(worker.inq._reader.fileno(), worker.wait_for_job)  # noqa: SLF001
        #: What clerks have read, for the main thread; None where they read no more.
        self._read: HandOver[_Read] = HandOver()
        self._reading, self._writing = threading.Lock(), threading.Lock()
        self._to_read: int | None = worker.maxtasks
        self._ordinary: _Ordinary | None = None
        self._unsettled: deque[Turn] = deque()
        #: Whose model ran last; its clerk may still have to hear of the answer.
        self._last: Turn | None = None
        self._started = self._clerks_read = False

    def take_over(self) -> None:
        """Put ourselves before what billiard's loop calls."""
        worker = self._worker
        worker.wait_for_job = self.wait_for_job
        worker.outq.put = self.put
        worker._ensure_messages_consumed = self.ensure_messages_consumed  # noqa: SLF001

    # What follows runs on the main thread.

    def wait_for_job(self) -> Any:
        """Return the next job in billiard's form; of a batch, its model's part."""
        if self._ordinary is not None:
            self._ordinary.done.set()
        self._tidy_up()
        if not self._started:
            self._start()
        found = self._next_read() if self._clerks_read else None
        if found is None:
            return self._read_alone()
        if isinstance(found, BaseException):
            raise found
        if isinstance(found, Turn):
            last, self._last = self._last, found
            while self._unsettled and self._unsettled[0].has_ended:
                self._unsettled.popleft()
            self._unsettled.append(found)
            found.limit = self._signals.aim(found.soft_limit)
            return TASK, (*found.job, found.run, (last,), {})
        self._await_ends(None)
        self._signals.leave_alone()
        self._ordinary = found
        return found.job

    def put(self, message: Any) -> None:
        """Write to the pool, except that a batch is done: its clerk says so."""
        if message[0] == READY and isinstance(message[1][2][1], Turn):
            return
        with self._writing:
            if message[0] == ACK:  # between two models; plain numbers need no pickler of billiard's
                self._worker.outq.send_payload(dumps(message))
            else:
                self._put(message)

    def ensure_messages_consumed(self, completed: int) -> Any:
        """Return when the pool has heard everything, before this process ends."""
        self._await_ends(_LAST_MOMENT if terminate_handler_fired() else None)
        return self._ensure_heard(completed=completed)

    def _tidy_up(self) -> None:
        """Close what Django opened for the model: signals do so on the clerks' threads only."""
        for fixup in self._app._fixups:  # noqa: SLF001 (Celery keeps them nowhere else)
            django = getattr(fixup, "_worker_fixup", None)
            if django is not None:
                django.close_database()
                django.close_cache()

    def _next_read(self) -> _Read | None:
        """Return what clerks have read; None if they leave it to this thread."""
        try:
            found = self._read.get_nowait()
        except Empty:
            self._tell_last()
            found = self._read.get()
        self._clerks_read = found is not None
        return found

    def _read_alone(self) -> Any:
        """Return a job as billiard's loop would get it; nothing if clerks are to have it."""
        job = self._turns.receive()
        if job and job[1][2] is run_batch:
            self._clerks_read = True
            self._turns.hand_over(job)
            return None
        if job and self._to_read:
            self._to_read -= 1
        if job and job[1][2] is run_lone_batch:
            number, index, function, arguments, options = job[1]
            limit = self._signals.aim(arguments[2])
            return TASK, (number, index, function, (*arguments, limit), options)
        self._signals.leave_alone()
        return job

    def _tell_last(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            last.tell()

    def _await_ends(self, timeout: float | None) -> None:
        self._tell_last()
        while self._unsettled and self._unsettled[0].await_end(timeout):
            self._unsettled.popleft()

    def _start(self) -> None:
        self._started = True
        interpreter.divide()
        before = threading.stack_size(_STACK)
        try:
            for n in range(1, _CLERKS + 1):
                threading.Thread(target=self._work, name=f"clerk-{n}", daemon=True).start()
        finally:
            threading.stack_size(before)

    # What follows runs on a clerk's thread.

    def _work(self) -> None:
        while (turn := self._next()) is not None:
            self._keep_books(turn)

    def _next(self) -> Turn | None:
        """Read on, one clerk at a time; None if there is nothing more to read."""
        with self._reading:
            while self._to_read != 0:
                try:
                    request = self._turns.receive_beside()
                except BaseException as error:  # noqa: BLE001 (the process is to end: the main thread's part)
                    self._to_read = 0
                    self._read.put(error)
                    break
                if not request:
                    self._read.put(None)
                    continue
                if self._to_read:  # a clerk may have said meanwhile that this was the last
                    self._to_read -= 1
                self._turns.begin()
                turn = self._turn(request)
                if turn is not None:
                    self._read.put(turn)
                    return turn
                ordinary = _Ordinary(request)
                self._read.put(ordinary)
                ordinary.done.wait()
                self._turns.end()
        return None

    def _turn(self, request: Any) -> Turn | None:
        job, index, function, arguments, _ = request[1]
        if function not in {run_batch, run_lone_batch} or not may_overlap(
            self._app.tasks.get(arguments[0])
        ):
            return None
        return Turn((job, index), arguments)

    def _keep_books(self, turn: Turn) -> None:
        try:
            end = settle(turn.task_name, turn.deliveries, turn.perform)
            turn.await_start()
            if not turn.has_raised:
                self._report(turn, end)
        except BaseException as error:
            logger.debug("A batch of %s has ended its process", turn.task_name, exc_info=True)
            if not turn.has_raised:
                self._leave(turn, error)
        finally:
            turn.close()
            self._turns.end()

    def _leave(self, turn: Turn, error: BaseException) -> None:
        """Report that a hook wants this process to exit, as billiard would, and have it exit."""
        turn.await_start()
        with suppress(Exception):  # nobody is there to hear it
            self._report(turn, ExceptionInfo(), went_well=False)
        self._to_read = 0
        self._read.put(error)

    def _report(self, turn: Turn, end: Any, *, went_well: bool = True) -> None:
        tail = (self._worker.inqW_fd,)
        try:
            self.put((READY, (*turn.job, (went_well, end), *tail)))
        except Exception as error:  # noqa: BLE001 (as billiard: what cannot be pickled is the job's error)
            einfo = error_info(MaybeEncodingError(error, end))
            self.put((READY, (*turn.job, (False, einfo), *tail)))
