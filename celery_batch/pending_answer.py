"""What passes between a batch and its items, on one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from celery.exceptions import Ignore, Retry

from celery_batch.rows import Asked
from celery_batch.runtime.runner import Outcome

__all__ = ["Answer", "PendingAnswer", "RetryItem", "RunAgain", "pending_answer", "retry_options"]

#: From what one request asks to what became of it.
Answer = Callable[[Asked], Outcome]


class PendingAnswer(threading.local):
    """
    Where a worker leaves the way to an item's answer for that item's `run`.

    One per thread: on the threads pool several batches run at once.
    """

    #: Whether a batch function is running here, so that no single request is current.
    in_batch = False

    _task_id: str | None = None
    _answer: Answer | None = None

    @contextmanager
    def running_batch(self) -> Iterator[None]:
        """Say that a batch function runs; inside it another may, of a task called directly."""
        before, self.in_batch = self.in_batch, True
        try:
            yield
        finally:
            self.in_batch = before

    def take(self, task_id: str, answer: Answer) -> None:
        """
        Leave an answer for the next call of `run`.

        Args:
            task_id: Whose answer it is; a task called inside a hook must not take it.
            answer: Given what the request asks, returns its outcome.
        """
        self._task_id, self._answer = task_id, answer

    def leave(self, task_id: str | None) -> Answer | None:
        """Return the answer left for this task, once."""
        if self._answer is None or task_id != self._task_id:
            return None
        answer, self._answer = self._answer, None
        return answer


pending_answer = PendingAnswer()


class RetryItem(Retry):  # type: ignore[misc]
    """
    The wish of a batch function to be called again, for each of its items to carry out.

    Celery's own `Retry` says that the message has been sent; a batch function has no
    message of its own to send again.

    Args:
        options: What the function gave to ``self.retry``.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(exc=options.get("exc"), when=options.get("countdown"))
        self.options = options


class RunAgain(Ignore):  # type: ignore[misc]
    """
    The run broke off before this item had an answer; the worker will run it again, alone.

    Celery's tracer then stores nothing, calls nobody back, and leaves the message be.
    """


def retry_options(error: Retry) -> dict[str, Any]:
    """
    Return what an item's own ``self.retry`` has to be called with.

    Args:
        error: From ``self.retry`` in a batch function, or a `Retry` that the
            function returned in place of one item's output.
    """
    if isinstance(error, RetryItem):
        return error.options
    options = {"exc": error.exc} if error.exc is not None else {}
    if error.when is not None:
        options["countdown" if isinstance(error.when, (int, float)) else "eta"] = error.when
    return options
