"""The result of a task that ran at once, in the process that called it."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future
from typing import Any, Self

from celery.result import EagerResult

from celery_batch.replies import BatchFacts

__all__ = ["EagerBatchResult", "EagerStates"]


class EagerStates:
    """
    States that are known.

    Args:
        known: In their order.
    """

    def __init__(self, known: list[str]) -> None:
        self._known = known

    def __iter__(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        return self

    def __next__(self) -> str:
        if not self._known:
            raise StopIteration
        return self._known.pop(0)

    async def __anext__(self) -> str:
        if not self._known:
            raise StopAsyncIteration
        return self._known.pop(0)


class EagerBatchResult(EagerResult):  # type: ignore[misc]
    """Celery's, with what a `BatchResult` has besides."""

    #: It was made alone, and here.
    batch: BatchFacts | None = None

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

    def states(self, timeout: float | None = None) -> EagerStates:  # noqa: ARG002 (it has ended)
        """Return an iterator, and asynchronous iterator, of the one state that it has."""
        return EagerStates([self.state])

    def future(self) -> Future[Any]:
        """Return a future that is done."""
        future: Future[Any] = Future()
        try:
            future.set_result(self.get(disable_sync_subtasks=False))
        except Exception as error:  # noqa: BLE001 (it is for whoever asks the future)
            future.set_exception(error)
        return future
