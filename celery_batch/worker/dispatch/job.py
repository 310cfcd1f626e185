"""A pool job for one batch, and its callbacks for every request."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from itertools import compress
from typing import Any, Protocol
from uuid import uuid4
from weakref import ref

from billiard.einfo import ExceptionInfo
from celery.concurrency.prefork import TaskPool as PreforkPool
from celery.exceptions import TaskRevokedError
from celery.worker import state
from celery.worker.state import task_ready

from celery_batch.batching.batch import Batch, Reason
from celery_batch.errors import BatchError
from celery_batch.worker.dispatch.notification import Notification, accept
from celery_batch.worker.dispatch.outcome import (
    BatchEnd,
    Ending,
    after_answer,
    after_failure,
    error_info,
)
from celery_batch.worker.dispatch.payload import BatchPayload, Delivery
from celery_batch.worker.executor.executor import run_batch, run_lone_batch
from celery_batch.worker.intake.request import wants_events

__all__ = ["BatchJob", "JobListener"]

logger = logging.getLogger(__name__)


#: Seconds a model has to heed its soft limit where both limits would strike at once.
_AFTER_SOFT = 0.5


class JobListener(Protocol):
    """Who wants to know how a job is doing."""

    def before_submit(self) -> None:
        """The job is about to be handed to the pool: drop what is no longer this worker's."""

    def on_start(self, job: BatchJob) -> None:
        """A pool process has taken the job."""

    def on_end(self, job: BatchJob, ending: Ending) -> None:
        """The job has left its slot; told once."""


class BatchJob:
    """
    What Celery's worker hands to the pool in place of a single request.

    It offers the one method the worker calls, and fans the pool's news out to
    Celery's own request handlers, one request at a time: an error while one is
    told never keeps the news from the others.

    Args:
        task: The batch task.
        batch: Its items are Celery's requests.
        listener: Told when the job starts and when it has left its slot.
    """

    def __init__(self, task: Any, batch: Batch[Any], listener: JobListener) -> None:
        self.id = str(uuid4())
        self.task = task
        self.requests: list[Any] = batch.items
        #: How many rows they have.
        self.rows = batch.rows
        #: Of its most urgent request; smaller goes first.
        self.urgency = batch.urgency
        #: Which part of a batch it is owed by who came before.
        self.guaranteed = batch.guaranteed
        #: Why it left, and how many rows it might have had; the latter is set by who knows.
        self.reason, self.room = batch.reason, max(self.rows, 1)
        #: Whether its one request may be what takes processes down.
        self.is_suspect = batch.reason is Reason.ALONE
        #: Whether nobody runs or waits beside it; set by who knows, before it is submitted.
        self.is_lone = False
        #: The jobs that are in its process with it, or were when that died.
        self.neighbours: set[BatchJob] = set()
        #: Most rows in one call of the model; None for what the task says.
        self.most: int | None = None
        self.submitted = False
        self._result: Any = lambda: None
        #: When a pool process took it, on the monotonic clock, and which.
        self.began: float | None = None
        self.pid: int | None = None
        #: What the pool process said, once it has.
        self.answer: BatchEnd | None = None
        #: What the pool said in its place.
        self.error: Any = None
        #: What waits for a thread of this process, if that is where it runs.
        self._waiting: BatchPayload | None = None
        self._listener = listener
        self._ended = self._told = False
        #: Guards the end, and who is there to see it: pools may tell of it on threads,
        #: and a signal's handler on top of us.
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        state = "ended" if self._ended else "running" if self.accepted else "ready"
        return f"<BatchJob {self.id}: {self.task.name} x {len(self.requests)}, {state}>"

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def accepted(self) -> bool:
        """Whether a pool process has taken it."""
        return self.began is not None

    @property
    def is_known(self) -> bool:
        """Whether the pool will still say what becomes of it."""
        result = self._result()
        return result is not None and result._job in result._cache  # noqa: SLF001 (no public look)

    @property
    def has_ended(self) -> bool:
        """Whether it has left its slot."""
        return self._ended

    def execute_using_pool(self, pool: Any, **_: Any) -> Any:
        """
        Submit the batch, less what was revoked, has expired or went elsewhere meanwhile.

        Raises:
            TaskRevokedError: Nothing is left to run; the worker then frees the
                process it had set aside.
        """
        if self._ended:
            raise TaskRevokedError(self.id)
        self._listener.before_submit()
        self.requests = [request for request in self.requests if not _is_unwanted(request)]
        self.rows = sum(request.rows for request in self.requests)
        if not self.requests:
            self._end(Ending())
            raise TaskRevokedError(self.id)
        try:
            result = self._submit(pool)
        except Exception as error:
            if state.should_terminate or state.should_stop is not None:
                self._end(Ending())  # a pool of threads that is closing, in its way of saying so
            else:
                logger.exception("Could not hand %r to the pool", self)
                self._on_failure(error_info(error))
            raise TaskRevokedError(self.id) from error
        self._remember(result)
        return result

    def _submit(self, pool: Any) -> Any:
        soft, hard = _tightest_limits(self.task, self.requests)
        payload = self._payload()
        if not isinstance(pool, PreforkPool):  # there a copy has gone to a process
            self._waiting = payload
        return pool.apply_async(
            run_lone_batch if self.is_lone else run_batch,
            (self.task.name, payload, soft),
            accept_callback=self._on_accepted,
            callback=self._on_success,
            error_callback=self._on_failure,
            timeout_callback=self._on_timeout,
            soft_timeout=soft,
            timeout=hard,
            correlation_id=self.id,
        )

    def _payload(self) -> BatchPayload:
        first = self.requests[0]  # as all of them, one task's of one consumer
        return BatchPayload(
            map(_delivery, self.requests),
            self.most,
            urgency=self.urgency,
            reason=str(self.reason),
            has_watchers=wants_events(first.eventer, first.task),
        )

    def _remember(self, result: Any) -> None:
        if result is not None:
            self.submitted = True
            self._result = ref(result)
            for request in self.requests:
                # What Celery's own cancel() looks at when it wants to stop a request.
                request._apply_result = ref(result)  # noqa: SLF001
        elif not self.accepted:
            # A pool that is closing takes nothing more, and says so with None; left
            # unacknowledged, the messages go back to the broker with the connection.
            # (The solo pool answers None as well, but after it has run the batch.)
            self._end(Ending())

    def forget(self) -> None:
        """Give up requests that will not run here: their messages went back to the broker."""
        self._ended = self._told = True
        for request in self.requests:
            task_ready(request)

    def drop(self, tags: set[str]) -> None:
        """
        Drop the requests whose messages have gone to another worker, unless the pool has them.

        A batch of which nothing is left ends when its turn comes.

        Args:
            tags: The delivery tags of these messages.
        """
        with self._lock:
            if self.submitted or self.accepted or self._ended:
                return
            gone = [each for each in self.requests if each.message.delivery_tag in tags]
            self.requests = [each for each in self.requests if each not in gone]
            self.rows = sum(request.rows for request in self.requests)
        for request in gone:
            task_ready(request)

    def disown(self) -> None:
        """Let the batch finish, but never acknowledge on a connection that is gone."""
        for request in self.requests:
            request.disown()

    def adopt(self, task_request: Any) -> bool:
        """
        Put a request in the place of its former self, whose connection is gone.

        Args:
            task_request: From the message as it was delivered again.

        Returns:
            Whether it is in this job now; a job that has ended takes nobody in.
        """
        with self._lock:
            keys = [former.key for former in self.requests]
            if self._ended or task_request.key not in keys:
                return False
            index = keys.index(task_request.key)
            former, self.requests[index] = self.requests[index], task_request
        task_ready(former)
        if self.began is not None:
            Notification(task_request, task_request.on_accepted, (self.pid, self.began)).deliver()
        return True

    def _on_accepted(self, pid: int, time_accepted: float) -> None:
        if self._ended:
            return
        self._leave_out_unwanted()
        self.pid, self.began = pid, time_accepted
        self._listener.on_start(self)
        for request in accept(self.requests, pid, time_accepted):
            Notification(request, request.on_accepted, (pid, time_accepted)).deliver()

    def _leave_out_unwanted(self) -> None:
        """Take out of what has waited for a thread who was revoked or has expired meanwhile."""
        payload, self._waiting = self._waiting, None
        if payload is None:
            return
        with self._lock:
            wanted = [not _is_unwanted(request) for request in self.requests]
            self.requests = list(compress(self.requests, wanted))
            payload[:] = list(compress(payload, wanted))
            self.rows = sum(request.rows for request in self.requests)

    def _on_success(self, answer: BatchEnd | ExceptionInfo, **_: Any) -> None:
        if isinstance(answer, ExceptionInfo):  # how solo and threads report an exit of the model's
            self._on_failure(answer)
            return
        requests = self._close()
        if len(answer.settled) != len(requests):  # never; but then nobody may be left waiting
            settled, asked = len(answer.settled), len(requests)
            what = f"the pool process settled {settled} of {asked} requests"
            einfo = error_info(BatchError(what))
            self._end(after_failure(self.task, requests, einfo, began=self.began, was_alone=False))
            return
        self.answer = answer
        self._end(after_answer(requests, answer, began=self.began or time.monotonic()))

    def _on_failure(self, einfo: Any, **_: Any) -> None:
        requests, self.error = self._close(), einfo.exception
        was_alone = len(requests) == 1 and not self.neighbours
        self._end(after_failure(self.task, requests, einfo, began=self.began, was_alone=was_alone))

    def _on_timeout(self, soft: bool, timeout: float) -> None:  # noqa: FBT001 (the pool's signature)
        if soft:  # a hard one has been told as the failure that it is
            for request in self.requests:
                Notification(request, request.on_timeout, (soft, timeout)).deliver()

    def _close(self) -> list[Any]:
        """Take nobody in any more, and return who is there; nobody if that was done before."""
        with self._lock:
            requests, self._ended = [] if self._ended else list(self.requests), True
        return requests

    def _end(self, ending: Ending) -> None:
        self._ended = True
        if not self._told:
            self._told = True
            self._listener.on_end(self, ending)


def _is_unwanted(request: Any) -> bool:
    """Say whether nobody wants its answer any more; its end is then announced."""
    try:
        return bool(request.revoked())
    except Exception:
        logger.exception("Could not revoke %s[%s], which runs", request.name, request.id)
        return False


def _delivery(request: Any) -> Delivery:
    # Arguments cross to the pool once, as the encoded body.
    fields = request.request_dict.copy()
    fields.pop("args", None)
    fields.pop("kwargs", None)
    return Delivery(
        request.id,
        fields,
        request.body,
        request.content_type,
        request.content_encoding,
        request.arrived,
        not request.is_undecoded,
    )


def _tightest_limits(task: Any, requests: Sequence[Any]) -> tuple[float | None, float | None]:
    """Return the soft and the hard limit of a batch, in seconds."""
    limits = [request.time_limits for request in requests]
    hards = [own or task.time_limit for own, _ in limits if own or task.time_limit]
    softs = [own or task.soft_time_limit for _, own in limits if own or task.soft_time_limit]
    # Who is tried once more, alone, has what its first batch has left it of the time.
    deadlines = [request.deadline for request in requests if request.deadline is not None]
    if deadlines:
        left = max(min(deadlines) - time.monotonic(), 0.01)
        if hards:
            hards.append(left + (_AFTER_SOFT if softs else 0.0))
        if softs:
            softs.append(left)
    return min(softs, default=None), min(hards, default=None)
