"""One pool job for one batch, and its news for every request in it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4
from weakref import ref

from billiard.einfo import ExceptionInfo
from celery.exceptions import TaskRevokedError
from celery.utils.functional import noop
from celery.worker.state import task_ready

from celery_batch.batching.batch import Batch
from celery_batch.errors import BatchError
from celery_batch.worker.settle import Delivery, Settled, run_batch

__all__ = ["BatchJob", "JobEnd", "News"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class News:
    """
    Something to tell one of Celery's requests, without harm to its neighbours.

    Args:
        request: Celery's request.
        tell: The handler of the request to call.
        facts: Its arguments.
    """

    request: Any
    tell: Callable[..., Any]
    facts: tuple[Any, ...]

    def deliver(self) -> None:
        """Call the handler; an error is logged, so that the others hear theirs."""
        try:
            self.tell(*self.facts)
        except Exception:
            logger.exception("Could not settle %s[%s]", self.request.name, self.request.id)

    def disown(self) -> None:
        """Keep the handler from acknowledging on a connection that is gone."""
        _disown(self.request)


#: Told once when a job has left its slot, with what is left to tell its requests.
JobEnd = Callable[["BatchJob", list[News]], None]


class BatchJob:
    """
    What Celery's worker hands to the pool in place of a single request.

    It offers the one method the worker calls, and fans the pool's news out to
    Celery's own request handlers, one request at a time: an error while one is
    told never keeps the news from the others.

    Args:
        task: The batch task.
        batch: Its items are Celery's requests.
        on_end: Told when the job has left its slot.
    """

    def __init__(self, task: Any, batch: Batch[Any], on_end: JobEnd) -> None:
        self.id = str(uuid4())
        self.submitted = False
        self.accepted = False
        self._task = task
        self._requests: list[Any] = batch.items
        self._on_end = on_end
        self._ended = False

    def __repr__(self) -> str:
        state = "ended" if self._ended else "running" if self.accepted else "ready"
        return f"<BatchJob {self.id}: {self._task.name} x {len(self._requests)}, {state}>"

    def __len__(self) -> int:
        return len(self._requests)

    def execute_using_pool(self, pool: Any, **_: Any) -> Any:
        """
        Submit the batch, less what was revoked or has expired meanwhile.

        Raises:
            TaskRevokedError: Nothing is left to run; the worker then frees the
                process it had set aside.
        """
        if self._ended:
            raise TaskRevokedError(self.id)
        self._requests = [request for request in self._requests if not request.revoked()]
        if not self._requests:
            self._end([])
            raise TaskRevokedError(self.id)
        soft, hard = _tightest_limits(self._task, self._requests)
        result = pool.apply_async(
            run_batch,
            (self._task.name, [_delivery(request) for request in self._requests]),
            accept_callback=self._on_accepted,
            callback=self._on_success,
            error_callback=self._on_failure,
            timeout_callback=self._on_timeout,
            soft_timeout=soft,
            timeout=hard,
            correlation_id=self.id,
        )
        self._remember(result)
        return result

    def _remember(self, result: Any) -> None:
        if result is not None:
            self.submitted = True
            for request in self._requests:
                # What Celery's own cancel() looks at when it wants to stop a request.
                request._apply_result = ref(result)  # noqa: SLF001
        elif not self.accepted:
            # A pool that is closing takes nothing more, and says so with None; left
            # unacknowledged, the messages go back to the broker with the connection.
            # (The solo pool answers None as well, but after it has run the batch.)
            self._end([])

    def forget(self) -> None:
        """Give up requests that will not run here: their messages went back to the broker."""
        self._ended = True
        for request in self._requests:
            task_ready(request)

    def disown(self) -> None:
        """Let the batch finish, but never acknowledge on a connection that is gone."""
        for request in self._requests:
            _disown(request)

    def _on_accepted(self, pid: int, time_accepted: float) -> None:
        self.accepted = True
        for request in self._requests:
            News(request, request.on_accepted, (pid, time_accepted)).deliver()

    def _on_success(self, settled: list[Settled], **_: Any) -> None:
        if len(settled) != len(self._requests):  # never; but then nobody may be left waiting
            self._on_failure(_explain(len(settled), len(self._requests)))
            return
        ends = zip(self._requests, settled, strict=True)
        self._end([News(request, request.on_success, (end,)) for request, end in ends])

    def _on_failure(self, einfo: Any, **_: Any) -> None:
        self._end([News(request, request.on_failure, (einfo,)) for request in self._requests])

    def _on_timeout(self, soft: bool, timeout: float) -> None:  # noqa: FBT001 (the pool's signature)
        for request in self._requests:
            News(request, request.on_timeout, (soft, timeout)).deliver()

    def _end(self, news: list[News]) -> None:
        if not self._ended:
            self._ended = True
            self._on_end(self, news)


def _explain(settled: int, requests: int) -> ExceptionInfo:
    try:
        raise BatchError(  # noqa: TRY301 (what is sent on needs a real traceback)
            f"the pool process settled {settled} of {requests} requests"
        )
    except BatchError:
        return ExceptionInfo()


def _disown(request: Any) -> None:
    request._on_ack = request._on_reject = noop  # noqa: SLF001


def _delivery(request: Any) -> Delivery:
    # Arguments cross to the pool once, as the encoded body.
    fields = request.request_dict.copy()
    fields.pop("args", None)
    fields.pop("kwargs", None)
    return Delivery(
        request.id, fields, request.body, request.content_type, request.content_encoding
    )


def _tightest_limits(task: Any, requests: Iterable[Any]) -> tuple[float | None, float | None]:
    hard, soft = task.time_limit, task.soft_time_limit
    limits = [request.time_limits for request in requests]
    hards = [own or hard for own, _ in limits if own or hard]
    softs = [own or soft for _, own in limits if own or soft]
    return min(softs, default=None), min(hards, default=None)
