"""Passes each item of a batch its outcome, through the item's own `run`, on one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from celery.exceptions import Ignore, Retry

from celery_batch.items.rows import CallRows
from celery_batch.runtime.runner import Outcome

__all__ = ["Answer", "PendingAnswer", "RetryItem", "RunAgain", "pending_answer", "retry_options"]

#: Returns the outcome of a request, given its rows.
Answer = Callable[[CallRows], Outcome]


class PendingAnswer(threading.local):
    """What the next `run` of an item gets its outcome from; each thread may run a batch."""

    #: Whether a batch function runs on this thread, so that no single request is current.
    in_batch = False

    _task_id: str | None = None
    _answer: Answer | None = None

    @contextmanager
    def running_batch(self) -> Iterator[None]:
        """Set `in_batch`; blocks may be nested, as a batch function may call another task."""
        before, self.in_batch = self.in_batch, True
        try:
            yield
        finally:
            self.in_batch = before

    def set(self, task_id: str, answer: Answer) -> None:
        """Set the answer for the next `run` of this task id; a hook may call other tasks before."""
        self._task_id, self._answer = task_id, answer

    def pop(self, task_id: str | None) -> Answer | None:
        """Return the answer that was set for this task id, once."""
        if self._answer is None or task_id != self._task_id:
            return None
        answer, self._answer = self._answer, None
        return answer


pending_answer = PendingAnswer()


class RetryItem(Retry):  # type: ignore[misc]
    """A batch function's ``self.retry``: each item is to be retried, and none was sent yet."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(exc=options.get("exc"), when=options.get("countdown"))
        self.options = options


class RunAgain(Ignore):  # type: ignore[misc]
    """The run ended before this item had an output: it runs again, and Celery stores nothing."""


def retry_options(error: Retry) -> dict[str, Any]:
    """Return the options for an item's own ``self.retry``, from the error that asks for it."""
    if isinstance(error, RetryItem):
        return error.options
    options = {"exc": error.exc} if error.exc is not None else {}
    if error.when is not None:
        options["countdown" if isinstance(error.when, (int, float)) else "eta"] = error.when
    return options
