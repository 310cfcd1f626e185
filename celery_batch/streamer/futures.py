"""The futures that streamers return.

A stock future makes a lock, a condition and two lists, which costs three times as much as the
rest of a request, and most futures are never waited for: when the first one of a batch has
its answer, so have the others.  Here they are made when they are needed, and the futures of a
batch that did not need them are settled together, under one lock.

Rule 1: Each answer has a condition of its own, since the standard library acquires the conditions
        of many futures in the order of their ids, and no other order is safe.
Rule 2: An answer that has a condition becomes done under it.
Rule 3: The `AnswerLock` is the last one acquired: its holder acquires no condition.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Hashable, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from typing import Any

from celery_batch.batching.batch import Request
from celery_batch.runtime.runner import Outcome

__all__ = [
    "Answer",
    "AnswerLock",
    "CombinedAnswer",
    "fail",
    "settle",
    "start",
    "without_cancelled",
]

logger = logging.getLogger(__name__)

# The standard library's own states; its methods, which we inherit, compare with them.
_PENDING, _RUNNING, _FINISHED, _CANCELLED = "PENDING", "RUNNING", "FINISHED", "CANCELLED"

_DONE = frozenset({_CANCELLED, "CANCELLED_AND_NOTIFIED", _FINISHED})

#: The items of a request that is done: its future does not keep them alive.
_NOTHING: list[Any] = []


class AnswerLock:
    """What all answers of one streamer share."""

    def __init__(self, timeout: float | None = None) -> None:
        #: For waits that name none, in seconds; None for ever.
        self.timeout = timeout
        # Looked up now, not at import: gevent may have put its own in place by then.
        self.lock = threading.RLock()
        #: Answers that were cancelled while their requests were still in the queue.
        self.given_up = 0


class Answer(Future[list[Any]]):
    """The outputs for one request, once they are there; works wherever a `Future` does."""

    _state = _PENDING
    _result: Any = None
    _exception: BaseException | None = None
    _origin: Any = None
    #: What all of its items have in common, where batches are formed by key.
    key: Hashable = None
    #: The answer that this one is a part of.
    whole: Answer | None = None
    #: What the items cost, where that is limited.
    cost = 0.0

    def __init__(
        self, items: list[Any], answer_lock: AnswerLock
    ) -> None:  # what super() makes comes later
        self.items = items
        self._answer_lock = answer_lock

    def __getattr__(self, name: str) -> Any:
        # A second thread finds what the first has made: setdefault is atomic.
        if name == "_condition":
            with self._answer_lock.lock:  # a thread that settles it sees it, or has settled it
                return self.__dict__.setdefault(name, threading.Condition())
        if name in ("_waiters", "_done_callbacks"):
            return self.__dict__.setdefault(name, [])
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def begin_anew(self) -> None:
        """In a forked copy of the process: replace a condition that another thread had acquired."""
        if "_condition" in self.__dict__:
            self._condition = threading.Condition()
        if self.whole is not None:
            self.whole.begin_anew()

    def done(self) -> bool:
        """Say whether the answer is there, or never will be."""
        return self._state in _DONE

    def cancel(self) -> bool:
        """Return whether the answer is given up: not if the model has the request already."""
        with self._condition:
            with self._answer_lock.lock:
                if self._state != _PENDING:
                    return self.cancelled()
                self._state = _CANCELLED
                if self.items:
                    self.items = []
                    self._answer_lock.given_up += 1
            self._condition.notify_all()
        self._invoke_callbacks()
        return True

    def cancelled(self) -> bool:
        """Return whether the answer was given up."""
        return self._state in _DONE and self._state != _FINISHED

    def result(self, timeout: float | None = None) -> list[Any]:
        """Return the outputs, as any `Future`; in ``worker_timeout`` seconds unless given."""
        if self._state != _FINISHED:
            self._wait(timeout)
        if self._exception is not None:
            # One error may belong to many answers, and each raise makes its traceback longer.
            raise self._exception.with_traceback(self._origin)
        return self._result  # type: ignore[no-any-return]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what `result` would raise, None for nothing."""
        if self._state != _FINISHED:
            self._wait(timeout)
        return self._exception

    def _wait(self, timeout: float | None) -> None:
        limit = self._answer_lock.timeout if timeout is None else timeout
        with self._condition:
            if self._state not in _DONE:
                self._condition.wait(limit)
            if self._state == _FINISHED:
                return
            if self._state in _DONE:
                raise CancelledError
        raise TimeoutError(f"no answer within {limit:g} s; the request is {self._state.lower()}")


def start(
    requests: Sequence[Request[Answer]], answer_lock: AnswerLock
) -> Sequence[Request[Answer]]:
    """Take note that these requests run from here on; return those that are not cancelled."""
    is_wanted = True
    with answer_lock.lock:
        for request in requests:
            answer = request.item
            if answer._state == _PENDING:  # noqa: SLF001 (our own, as a future's executor does)
                answer._state = _RUNNING  # noqa: SLF001 (our own)
            else:  # given up, or running again
                is_wanted = False
    return requests if is_wanted else without_cancelled(requests, answer_lock)


def without_cancelled(
    requests: Sequence[Request[Answer]], answer_lock: AnswerLock
) -> list[Request[Answer]]:
    """Return the requests that are not cancelled, and forget the others."""
    with answer_lock.lock:
        left = [request for request in requests if request.item._state not in _DONE]  # noqa: SLF001 (our own)
        if len(left) == len(requests):
            return left
        given_up = [each.item for each in requests if each.item._state == _CANCELLED]  # noqa: SLF001 (our own)
        answer_lock.given_up -= len(given_up)
    for answer in given_up:
        answer.set_running_or_notify_cancel()
    return left


def settle(
    requests: Sequence[Request[Answer]], outputs: Sequence[Any], answer_lock: AnswerLock
) -> None:
    """Give many requests their answers at once; those that were cancelled stay so."""
    awaited: list[tuple[Answer, list[Any], Outcome | None]] = []
    may_fail = Outcome in set(map(type, outputs))
    end = 0
    with answer_lock.lock:
        for request in requests:
            answer, begin = request.item, end
            end += request.rows
            part = [outputs[begin]] if request.rows == 1 else list(outputs[begin:end])
            failure = _failure(part) if may_fail else None
            if "_condition" in answer.__dict__:
                awaited.append((answer, part, failure))
            elif answer._state not in _DONE:  # noqa: SLF001 (our own)
                if failure is None:
                    answer._result = part  # noqa: SLF001 (our own)
                else:
                    answer._exception, answer._origin = failure.error, failure.origin  # noqa: SLF001 (our own)
                answer.items = _NOTHING
                answer._state = _FINISHED  # noqa: SLF001 (our own)
    for answer, part, failure in awaited:
        try:
            if failure is None:
                answer.set_result(part)
            else:
                answer._origin = failure.origin  # noqa: SLF001 (our own)
                answer.set_exception(failure.error)
        except InvalidStateError:
            _notify_cancelled(answer, answer_lock)
        except BaseException:  # not even a `SystemExit` ends a streamer's thread
            logger.exception("A callback of %r broke off", answer)
        answer.items = _NOTHING


def fail(requests: Sequence[Request[Answer]], error: Exception, answer_lock: AnswerLock) -> None:
    """Fail many requests with one error."""
    outcome = Outcome(error=error, origin=error.__traceback__)
    settle(requests, [outcome] * sum(request.rows for request in requests), answer_lock)


def _failure(part: list[Any]) -> Outcome | None:
    """Return the first error among the outputs of a request."""
    return next((each for each in part if type(each) is Outcome), None)


def _notify_cancelled(answer: Answer, answer_lock: AnswerLock) -> None:
    """Wake the threads that wait for an answer that was cancelled in the queue."""
    with answer._condition:  # noqa: SLF001 (our own)
        with answer_lock.lock:
            if answer._state != _CANCELLED:  # noqa: SLF001 (our own)
                return
            answer_lock.given_up -= 1
        answer.set_running_or_notify_cancel()


class CombinedAnswer(Answer):
    """The outputs for a request that went in parts."""

    def __init__(self, parts: Sequence[Answer], answer_lock: AnswerLock) -> None:
        super().__init__([], answer_lock)
        self._parts = parts
        self._missing = len(parts)
        self._is_decided = False
        for part in parts:
            part.whole = self
            part.add_done_callback(self._receive)
        if not parts:
            self.set_result([])

    def begin_anew(self) -> None:
        """In a forked copy of the process: replace its conditions, and those of its parts."""
        for each in (self, *self._parts):
            each._condition = threading.Condition()  # noqa: SLF001 (our own)

    def cancel(self) -> bool:
        """Return whether what is missing is given up: not if the model has all of it already."""
        if not self.done():
            for part in self._parts:
                part.cancel()
        return self.cancelled()

    def _receive(self, part: Future[list[Any]]) -> None:
        error = None if part.cancelled() else part.exception()
        is_missing = part.cancelled() or error is not None
        with self._answer_lock.lock:  # parts come from many threads
            self._missing -= 1
            if self._is_decided or not (is_missing or not self._missing):
                return
            self._is_decided = True
        if part.cancelled():
            super().cancel()
            self.set_running_or_notify_cancel()
        elif error is not None:
            self._origin = error.__traceback__
            self.set_exception(error)
            for each in self._parts:
                each.cancel()
        else:
            self.set_result([output for each in self._parts for output in each.result()])
