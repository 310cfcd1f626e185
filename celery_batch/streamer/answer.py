"""
The futures of streamers.

A stock future makes a lock, a condition and two lists, which cost more than all the
rest of a request, and most are never waited for: when the first one of a batch has
its answer, so have the others.  Here they are made when somebody needs them, and all
answers of a streamer share one lock, so that a whole batch is settled under it at once.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from typing import Any

from celery_batch.batching.request import Request
from celery_batch.serving.runner import Outcome

__all__ = ["Answer", "Desk", "fail", "settle", "start", "wanted"]

# The standard library's own words; its methods, which we inherit, compare with them.
_PENDING, _RUNNING, _FINISHED = "PENDING", "RUNNING", "FINISHED"
_DONE = frozenset({"CANCELLED", "CANCELLED_AND_NOTIFIED", _FINISHED})


class Desk:
    """
    What all answers of one streamer share.

    Args:
        patience: Most seconds to wait for an answer, unless told otherwise; None for ever.
    """

    def __init__(self, patience: float | None = None) -> None:
        self.patience = patience
        # Looked up now, not at import: gevent may have put its own in place by then.
        self.lock = threading.RLock()
        #: Answers that were given up while their requests were still in line.
        self.given_up = 0


class Answer(Future[list[Any]]):
    """
    The outputs for one request, once they are there.

    A `concurrent.futures.Future`, and works wherever one does.

    Args:
        items: What the model is asked.
        desk: Its streamer's.
    """

    _state = _PENDING
    _result: Any = None
    _exception: BaseException | None = None
    _origin: Any = None

    def __init__(self, items: list[Any], desk: Desk) -> None:  # what super() makes comes later
        self.items = items
        self._desk = desk

    def __getattr__(self, name: str) -> Any:
        # Whoever gets here second finds what the first has made: setdefault is atomic.
        if name == "_condition":
            return self.__dict__.setdefault(name, threading.Condition(self._desk.lock))
        if name in ("_waiters", "_done_callbacks"):
            return self.__dict__.setdefault(name, [])
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def done(self) -> bool:
        """Say whether the answer is there, or never will be."""
        return self._state in _DONE

    def cancel(self) -> bool:
        """
        Give the answer up, unless the model has the request already.

        Returns:
            Whether it is given up.
        """
        if not super().cancel():
            return False
        with self._desk.lock:
            if self.items:
                self.items = []
                self._desk.given_up += 1
        return True

    def result(self, timeout: float | None = None) -> list[Any]:
        """
        Return the outputs, one per item, in order.

        Args:
            timeout: Most seconds to wait; the streamer's ``worker_timeout`` unless given.

        Raises:
            TimeoutError: They did not come in time.
            CancelledError: They were given up.
            Exception: What the model raised.
        """
        if self._state != _FINISHED:
            self._wait(timeout)
        if self._exception is not None:
            # One error may belong to many answers, and each raise makes its traceback longer.
            raise self._exception.with_traceback(self._origin)
        return self._result  # type: ignore[no-any-return]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """
        Return what `result` would raise, None for nothing.

        Args:
            timeout: As for `result`.

        Raises:
            TimeoutError: The answer did not come in time.
            CancelledError: It was given up.
        """
        if self._state != _FINISHED:
            self._wait(timeout)
        return self._exception

    def _wait(self, timeout: float | None) -> None:
        limit = self._desk.patience if timeout is None else timeout
        with self._condition:
            if self._state not in _DONE:
                self._condition.wait(limit)
            if self._state == _FINISHED:
                return
            if self._state in _DONE:
                raise CancelledError
        raise TimeoutError(f"no answer within {limit:g} s; the request is {self._state.lower()}")


def start(requests: Sequence[Request[Answer]], desk: Desk) -> list[Request[Answer]]:
    """Take note that these requests run from here on; return those that somebody still wants."""
    with desk.lock:
        for request in requests:
            if request.item._state == _PENDING:  # noqa: SLF001 (as a future's executor does)
                request.item._state = _RUNNING  # noqa: SLF001
        return wanted(requests, desk)


def wanted(requests: Sequence[Request[Answer]], desk: Desk) -> list[Request[Answer]]:
    """Return those requests that nobody has given up, and forget the others."""
    with desk.lock:
        left = [request for request in requests if request.item._state not in _DONE]  # noqa: SLF001
        for request in requests if len(left) < len(requests) else ():
            if request.item._state == "CANCELLED":  # noqa: SLF001
                desk.given_up -= 1
                request.item.set_running_or_notify_cancel()
    return left


def settle(requests: Sequence[Request[Answer]], outputs: Sequence[Any], desk: Desk) -> None:
    """
    Give many requests their answers at once.

    Args:
        requests: Those of a batch.
        outputs: Of all their items, in order; an `Outcome` with an error in place of some.
        desk: Their streamer's.
    """
    heard: list[Answer] = []
    may_fail = Outcome in set(map(type, outputs))
    end = 0
    with desk.lock:
        for request in requests:
            answer, begin = request.item, end
            end += request.rows
            if answer._state in _DONE:  # noqa: SLF001
                continue
            answer._result = part = list(outputs[begin:end])  # noqa: SLF001
            if may_fail:
                _mark_failure(answer, part)
            answer.items = []
            answer._state = _FINISHED  # noqa: SLF001
            made = answer.__dict__
            if "_condition" in made and _tell(answer, made):
                heard.append(answer)
    for answer in heard:
        answer._invoke_callbacks()  # noqa: SLF001


def fail(requests: Sequence[Request[Answer]], error: Exception, desk: Desk) -> None:
    """Fail many requests with one error."""
    outcome = Outcome(error=error, origin=error.__traceback__)
    settle(requests, [outcome] * sum(request.rows for request in requests), desk)


def _mark_failure(answer: Answer, part: list[Any]) -> None:
    """Note the first error among an answer's outputs, if there is one."""
    failure = next((each for each in part if type(each) is Outcome), None)
    if failure is not None:
        answer._result = None  # noqa: SLF001
        answer._origin = failure.origin  # noqa: SLF001
        answer._exception = failure.error  # noqa: SLF001


def _tell(answer: Answer, made: dict[str, Any]) -> bool:
    """Wake who waits, the desk's lock in hand; say whether somebody wants to be called."""
    for waiter in made.get("_waiters", ()):
        if answer._exception is None:  # noqa: SLF001
            waiter.add_result(answer)
        else:
            waiter.add_exception(answer)
    made["_condition"].notify_all()
    return "_done_callbacks" in made
