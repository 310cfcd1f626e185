"""The result of a task that ran at once, in the process that called it."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future
from typing import Any, Self

from celery import states
from celery.result import EagerResult
from kombu.exceptions import EncodeError

from celery_batch.encoding import check_output
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

    @classmethod
    def checked(cls, task: Any, result: Any, options: dict[str, Any]) -> Any:
        """
        Return an eager result, a failure if a worker could not have stored its value.

        Args:
            task: Whose call it is.
            result: What Celery's `apply` has returned.
            options: Of `apply`.

        Raises:
            EncodeError: A worker could not have, and ``throw`` or the app wants it raised.
        """
        found = cls.of(result)
        ignored = options.get("ignore_result", task.ignore_result)
        if not isinstance(found, EagerResult) or found.state != states.SUCCESS or ignored:
            return found
        try:
            check_output(task.backend, found.result)
        except EncodeError as error:
            throw = options.get("throw")
            if task.app.conf.task_eager_propagates if throw is None else throw:
                raise
            return cls(found.id, error, states.FAILURE, name=found.name)
        return found

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
