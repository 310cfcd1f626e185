"""A batch on two threads: one prepares and finishes it, the main thread runs the model."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from celery_batch.compat.celery import current_task
from celery_batch.worker.executor.model_call import ModelCall
from celery_batch.worker.executor.time_limit import SoftLimit

__all__ = ["OverlappedBatch"]


#: Seconds that the tracers of a batch get to finish when its model ends the process.  The
#: second that the worker threads get is for other batches, and follows if the process is
#: told to terminate.
_LAST_MOMENT = 5.0


@dataclass(frozen=True, slots=True)
class _Ready:
    """A model call that is ready, with the context of the thread that prepared it."""

    call: ModelCall
    context: Context
    request: Any
    since: float


class OverlappedBatch:
    """
    A batch that has reached this process.

    Args:
        job: The pool's numbers of the job.
        arguments: Those of `run_batch`.
    """

    def __init__(self, job: tuple[Any, Any], arguments: tuple[Any, ...]) -> None:
        self.job = job
        self.task_name, self.payload, self.soft_limit = arguments
        #: Smaller goes first.
        self.precedence: tuple[int, float] = self.payload.precedence
        #: Set when the batch is accepted.
        self.limit = SoftLimit()
        #: Whether the model ended the process: then the main thread reports the batch's end.
        self.has_raised = False
        self._accepted = threading.Event()
        self._finished = threading.Event()
        self._ready: SimpleQueue[_Ready | None] = SimpleQueue()
        #: The seconds for which the model call has waited, or the error that ended it.
        self._ends: SimpleQueue[float | BaseException] = SimpleQueue()
        self._unreleased: float | None = None

    # These methods run on the main thread.

    def run(self, last: OverlappedBatch | None) -> OverlappedBatch:
        """
        Run the model as soon as the batch is ready for it.

        Args:
            last: The batch before.  Its worker thread is released after this one was found
                ready: it would compete for the interpreter while the device is idle.

        Raises:
            BaseException: Whatever ends a process, from the model.
        """
        self._accepted.set()
        try:
            ready = self._await_ready(last)
            if last is not None:
                last.release()
            if ready is not None:
                waited = time.monotonic() - ready.since
                with current_task(ready.call.task, ready.request):
                    ready.context.run(ready.call, self.limit)
                self._unreleased = waited
        except BaseException as error:
            self.has_raised = True
            self._ends.put(error)
            self._finished.wait(_LAST_MOMENT)
            raise
        return self

    def release(self) -> None:
        """Have the worker thread go on after the model call, if it has not done so."""
        waited, self._unreleased = self._unreleased, None
        if waited is not None:
            self._ends.put(waited)

    def _await_ready(self, last: OverlappedBatch | None) -> _Ready | None:
        with suppress(Empty):
            return self._ready.get_nowait()
        if last is not None:
            last.release()
        return self._ready.get()

    @property
    def is_finished(self) -> bool:
        """Whether the worker thread is done with the batch."""
        return self._finished.is_set()

    def await_finish(self, timeout: float | None) -> bool:
        """Wait until the batch is finished, if it was accepted; return whether that is so."""
        return not self._accepted.is_set() or self._finished.wait(timeout)

    # These methods run on the worker thread.

    def run_model(self, call: ModelCall) -> float:
        """
        Have the main thread call the model, and return when it has; see `RunModel`.

        What the model needs is prepared here, while the main thread runs the batch before.

        Raises:
            BaseException: What ended the call there.
        """
        call.prepare()
        request = call.task.request_stack.top
        self._ready.put(_Ready(call, copy_context(), request, time.monotonic()))
        end = self._ends.get()
        if isinstance(end, BaseException):
            raise end
        return end

    def await_start(self) -> None:
        """Return when the main thread has accepted the batch."""
        self._accepted.wait()

    def finish(self) -> None:
        """Mark the batch as finished; there is no more model call."""
        self._ready.put(None)
        self._finished.set()
