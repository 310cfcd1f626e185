"""The result of a task that ran at once, in the process that called it."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future
from typing import Any

from celery.result import EagerResult

__all__ = ["EagerBatchResult"]


class EagerBatchResult(EagerResult):  # type: ignore[misc]
    """Celery's, with what a `BatchResult` has besides."""

    @classmethod
    def of(cls, result: Any) -> Any:
        """
        Return an eager result that can be awaited.

        Args:
            result: Celery's eager result, or another of its kind.
        """
        if type(result) is EagerResult:
            result.__class__ = cls
        return result

    def __await__(self) -> Generator[Any, None, Any]:
        """
        Return the result, or raise what the task has failed with.

        Raises:
            Exception: Whatever the task has failed with.
        """
        yield from ()
        return self.get()

    def future(self) -> Future[Any]:
        """Return a future that is done."""
        future: Future[Any] = Future()
        try:
            future.set_result(self.get(disable_sync_subtasks=False))
        except Exception as error:  # noqa: BLE001 (it is for whoever asks the future)
            future.set_exception(error)
        return future
