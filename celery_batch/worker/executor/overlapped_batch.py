"""One batch on two threads: one prepares and finishes it, one runs the model."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import Context, copy_context
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from celery._state import _task_stack

from celery_batch.worker.executor import interpreter
from celery_batch.worker.executor.model_call import ModelCall
from celery_batch.worker.executor.time_limit import SoftLimit

__all__ = ["OverlappedBatch"]


#: Seconds that a batch's tracers have to hear of what ends the process, in its model.  The
#: second of clerks is for other batches, and comes after this if the process is to terminate.
_LAST_MOMENT = 5.0


@dataclass(frozen=True, slots=True)
class _Offer:
    """A model call, with what is current on the thread that offers it."""

    call: ModelCall
    context: Context
    request: Any
    since: float

    @contextmanager
    def current(self) -> Iterator[None]:
        """Have the batch's task and its last item's request be the current ones here too."""
        task = self.call.task
        _task_stack.push(task)
        task.request_stack.push(self.request)
        try:
            yield
        finally:
            task.request_stack.pop()
            _task_stack.pop()


class OverlappedBatch:
    """
    A batch that has reached this process.

    Args:
        job: The pool's numbers of the job.
        arguments: Those of `run_batch`.
    """

    def __init__(self, job: tuple[Any, Any], arguments: tuple[Any, ...]) -> None:
        self.job = job
        self.task_name, self.deliveries, self.soft_limit = arguments
        #: Smaller goes first.
        self.urgency: int = self.deliveries.urgency
        #: What its soft limit does; set when it is taken up.
        self.limit = SoftLimit()
        #: Whether the main thread tells the pool how this ended: with an error of its own.
        self.has_raised = False
        self._taken = threading.Event()
        self._settled = threading.Event()
        self._offers: SimpleQueue[_Offer | None] = SimpleQueue()
        #: The seconds for which each call of a model had to wait, or what ended it.
        self._ends: SimpleQueue[float | BaseException] = SimpleQueue()
        self._kept: float | None = None

    def run(self, last: OverlappedBatch | None) -> OverlappedBatch:
        """
        Run the model as soon as the batch is ready for it; on the main thread.

        Args:
            last: The turn before, whose clerk need not hear of its answer before the
                device has work again: the clerk would want the interpreter to itself.

        Raises:
            BaseException: Whatever ends a process, from the model.
        """
        self._taken.set()
        try:
            offer = self._next_offer(last)
            if last is not None:
                interpreter.keep()
                last.tell()
            if offer is not None:
                waited = time.monotonic() - offer.since
                with offer.current():
                    offer.context.run(offer.call, self.limit)
                self._kept = waited
        except BaseException as error:
            self.has_raised = True
            self._ends.put(error)
            self._settled.wait(_LAST_MOMENT)
            raise
        finally:
            interpreter.share()
        return self

    def tell(self) -> None:
        """Tell the clerk that the model has answered, if it has not heard."""
        kept, self._kept = self._kept, None
        if kept is not None:
            self._ends.put(kept)

    def _next_offer(self, last: OverlappedBatch | None) -> _Offer | None:
        with suppress(Empty):
            return self._offers.get_nowait()
        if last is not None:
            last.tell()
        return self._offers.get()

    def perform(self, call: ModelCall) -> float:
        """
        Have the main thread call the model, and return when it has; see `Perform`.

        Raises:
            BaseException: What ended the call there.
        """
        request = call.task.request_stack.top
        self._offers.put(_Offer(call, copy_context(), request, time.monotonic()))
        end = self._ends.get()
        if isinstance(end, BaseException):
            raise end
        return end

    def await_start(self) -> None:
        """Return when the main thread has taken the batch up."""
        self._taken.wait()

    def close(self) -> None:
        """Say that the batch's books are closed."""
        self._offers.put(None)
        self._settled.set()

    @property
    def has_ended(self) -> bool:
        """Whether the batch's books are closed."""
        return self._settled.is_set()

    def await_end(self, timeout: float | None = None) -> bool:
        """
        Return when the batch's books are closed.

        Args:
            timeout: Seconds; None to wait as long as it takes.

        Returns:
            Whether they are, or nobody was told that they had been opened.
        """
        return not self._taken.is_set() or self._settled.wait(timeout)
