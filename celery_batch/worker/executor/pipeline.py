"""Threads of a pool process that read and finish batches beside the model's thread.

Rule 1: the main thread reads while there is nothing to do beside it.  A lone batch is
        its own then, from beginning to end: no thread has to wake another.
Rule 2: what has others behind it is handed to the clerks, who read from then on.
Rule 3: once they have nothing to read and nothing to settle, the main thread reads.

Rule 1: everything goes in the order in which it was read, except that a batch overtakes
        the less urgent ones that lie before it, as their models have not begun.
Rule 2: one side puts, and the other takes; what both touch is the standard library's
        queue, which bears an exception out of a signal's handler.

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
import os
import select
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pickle import dumps
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

import billiard
from billiard.common import terminate_handler_fired
from billiard.einfo import ExceptionInfo
from billiard.pool import ACK, READY, TASK, MaybeEncodingError

from celery_batch.worker.dispatch.outcome import error_info
from celery_batch.worker.dispatch.write_ahead import may_overlap
from celery_batch.worker.executor import interpreter
from celery_batch.worker.executor.executor import run_batch, run_lone_batch, settle
from celery_batch.worker.executor.overlapped_batch import OverlappedBatch
from celery_batch.worker.executor.time_limit import LimitSignals

__all__ = [
    "HandOver",
    "Reading",
    "start_threads",
]


class Reading:
    """
    Says whose turn it is to read.

    Args:
        pipe: The descriptor that jobs are read from.
        receive: Reads one; None if it was interrupted.
    """

    def __init__(self, pipe: int, receive: Callable[[], Any]) -> None:
        self._pipe = pipe
        #: Read one; for the main thread while it is its turn.
        self.receive = receive
        self._handed_over: Any = None
        #: Set while clerks read.
        self._is_theirs = threading.Event()
        self._open = 0
        self._lock = threading.Lock()
        #: Rung when clerks have settled all, for the one of them that waits at the pipe.
        self._bell, self._cord = os.pipe()
        self._either = select.poll()
        self._either.register(pipe, select.POLLIN)
        self._either.register(self._bell, select.POLLIN)

    def hand_over(self, job: Any) -> None:
        """
        Have clerks read from now on, and begin with this; asked by the main thread.

        Args:
            job: What it has read.
        """
        self._handed_over = job
        self._is_theirs.set()

    def receive_beside(self) -> Any:
        """
        Read one beside the main thread; asked by one clerk at a time.

        Returns:
            The job.  None if there is none, nor anything to settle: the main thread
            reads from now on, and is to be told.
        """
        self._is_theirs.wait()
        job, self._handed_over = self._handed_over, None
        while not job and self._is_there_more():
            job = self.receive()
        if not job:
            self._is_theirs.clear()
        return job

    def _is_there_more(self) -> bool:
        while True:
            ready = {descriptor for descriptor, _ in self._either.poll()}
            if self._pipe in ready:
                return True
            os.read(self._bell, 1)
            if not self._open:
                return False

    def begin(self) -> None:
        """Say that a clerk has a job that it has read."""
        with self._lock:
            self._open += 1

    def end(self) -> None:
        """Say that a job which was read is over."""
        with self._lock:
            self._open -= 1
            is_last = not self._open
        if is_last:
            os.write(self._cord, b"\0")


T = TypeVar("T")


class HandOver(Generic[T]):
    """
    A queue in which the urgent overtake.

    What has an ``urgency`` may be overtaken by what has a smaller one; nothing else is,
    and nothing overtakes it.
    """

    def __init__(self) -> None:
        self._read: SimpleQueue[T | None] = SimpleQueue()
        #: The taking side's own.
        self._waiting: deque[T | None] = deque()

    def put(self, what: T | None) -> None:
        """Put something behind everything that is no less urgent."""
        self._read.put(what)

    def get_nowait(self) -> T | None:
        """
        Return what is next.

        Raises:
            Empty: There is nothing.
        """
        self._look()
        if not self._waiting:
            raise Empty
        return self._take()

    def get(self) -> T | None:
        """Return what is next; wait for it if there is nothing."""
        self._look()
        if not self._waiting:
            self._waiting.append(self._read.get())
        return self._take()

    def qsize(self) -> int:
        """Return how many wait."""
        return self._read.qsize() + len(self._waiting)

    def _look(self) -> None:
        while not self._read.empty():
            self._waiting.append(self._read.get())

    def _take(self) -> T | None:
        urgencies = list(self._urgencies())
        place = urgencies.index(min(urgencies)) if urgencies else 0
        what = self._waiting[place]
        del self._waiting[place]
        return what

    def _urgencies(self) -> Iterator[int]:
        """Yield those of the batches that nothing else lies before."""
        for what in self._waiting:
            urgency = getattr(what, "urgency", None)
            if urgency is None:
                return
            yield urgency


logger = logging.getLogger(__name__)


#: For the batch that is settled, the one that runs or lies ready, and an urgent one.
_THREADS = 3


#: Bytes.  Tracers are nested, and a thread's stack does not grow by itself as the
#: main thread's does; what is not used of it costs address space only.
_STACK = 64 << 20


#: Seconds that batches get to be settled in a process that was told to terminate.
_LAST_MOMENT = 1.0


def start_threads(app: Any) -> None:
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
        _WorkerThreads(app, worker).take_over()


class _Ordinary:
    """A job that is no batch of ours, and that nothing is done beside."""

    def __init__(self, job: tuple[Any, ...]) -> None:
        self.job = job
        self.done = threading.Event()


#: What a clerk has read: a job, or what ends the process.
_Read = OverlappedBatch | _Ordinary | BaseException


class _WorkerThreads:
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
        self._ensure_received = worker._ensure_messages_consumed  # noqa: SLF001
        self._signals = LimitSignals()
        #: Asked under `_reading` by clerks.
        self._turns = Reading(worker.inq._reader.fileno(), worker.wait_for_job)  # noqa: SLF001
        #: What clerks have read, for the main thread; None where they read no more.
        self._read: HandOver[_Read] = HandOver()
        self._reading, self._writing = threading.Lock(), threading.Lock()
        self._to_read: int | None = worker.maxtasks
        self._ordinary: _Ordinary | None = None
        self._unsettled: deque[OverlappedBatch] = deque()
        #: Whose model ran last; its clerk may still have to hear of the answer.
        self._last: OverlappedBatch | None = None
        self._started = self._threads_read = False

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
        found = self._next_read() if self._threads_read else None
        if found is None:
            return self._read_alone()
        if isinstance(found, BaseException):
            raise found
        if isinstance(found, OverlappedBatch):
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
        if message[0] == READY and isinstance(message[1][2][1], OverlappedBatch):
            return
        with self._writing:
            if message[0] == ACK:  # between two models; plain numbers need no pickler of billiard's
                self._worker.outq.send_payload(dumps(message))
            else:
                self._put(message)

    def ensure_messages_consumed(self, completed: int) -> Any:
        """Return when the pool has heard everything, before this process ends."""
        self._await_ends(_LAST_MOMENT if terminate_handler_fired() else None)
        return self._ensure_received(completed=completed)

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
        self._threads_read = found is not None
        return found

    def _read_alone(self) -> Any:
        """Return a job as billiard's loop would get it; nothing if clerks are to have it."""
        job = self._turns.receive()
        if job and job[1][2] is run_batch:
            self._threads_read = True
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
            for n in range(1, _THREADS + 1):
                threading.Thread(target=self._work, name=f"clerk-{n}", daemon=True).start()
        finally:
            threading.stack_size(before)

    # What follows runs on a clerk's thread.

    def _work(self) -> None:
        while (turn := self._next()) is not None:
            self._keep_books(turn)

    def _next(self) -> OverlappedBatch | None:
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
                turn = self._overlapped(request)
                if turn is not None:
                    self._read.put(turn)
                    return turn
                ordinary = _Ordinary(request)
                self._read.put(ordinary)
                ordinary.done.wait()
                self._turns.end()
        return None

    def _overlapped(self, request: Any) -> OverlappedBatch | None:
        job, index, function, arguments, _ = request[1]
        if function not in {run_batch, run_lone_batch} or not may_overlap(
            self._app.tasks.get(arguments[0])
        ):
            return None
        return OverlappedBatch((job, index), arguments)

    def _keep_books(self, turn: OverlappedBatch) -> None:
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

    def _leave(self, turn: OverlappedBatch, error: BaseException) -> None:
        """Report that a hook wants this process to exit, as billiard would, and have it exit."""
        turn.await_start()
        with suppress(Exception):  # nobody is there to hear it
            self._report(turn, ExceptionInfo(), went_well=False)
        self._to_read = 0
        self._read.put(error)

    def _report(self, turn: OverlappedBatch, end: Any, *, went_well: bool = True) -> None:
        tail = (self._worker.inqW_fd,)
        try:
            self.put((READY, (*turn.job, (went_well, end), *tail)))
        except Exception as error:  # noqa: BLE001 (as billiard: what cannot be pickled is the job's error)
            einfo = error_info(MaybeEncodingError(error, end))
            self.put((READY, (*turn.job, (False, einfo), *tail)))
