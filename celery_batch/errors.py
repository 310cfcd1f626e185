"""
The errors of all packages.

Their arguments are plain strings, so that any result serializer can carry an error
from the worker to the caller.  The HTTP status is an attribute of the class, so that all
web helpers use the same one.  A class's docstring is its default message.

Two more, `PartlySent` and `BrokerUnreachable`, are kombu's `OperationalError`, too, and defined
in `celery_batch.client`; this module does not import Celery.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

__all__ = [
    "BackfillComplete",
    "BackfillError",
    "BackfillStopped",
    "BatchError",
    "ChunkFailed",
    "ConfigurationError",
    "DeadlineExceeded",
    "InvalidChunk",
    "InvalidCost",
    "InvalidKey",
    "InvalidPayload",
    "InvalidRow",
    "ItemTooLarge",
    "LoadFailed",
    "MessageRefused",
    "MessageTooLarge",
    "ModelError",
    "OutOfMemory",
    "PoisonItem",
    "QueueFull",
    "StreamerClosed",
    "WorkerLost",
    "WrongResultCount",
]


class BatchError(Exception):
    """Something went wrong while serving a batch."""

    #: The HTTP status of a web server's response.
    status_code = 500

    def __str__(self) -> str:
        return str(self.args[0] if self.args else "") or (self.__doc__ or "").strip()


class ConfigurationError(BatchError, ValueError):
    """A setting or task option is wrong."""


class DeadlineExceeded(BatchError, TimeoutError):
    """There was no result in time."""

    status_code = 504

    def __init__(self, *words: str, results: Sequence[Any] = ()) -> None:
        super().__init__(*words)
        #: The result of each call, in order; those of calls that still run can be
        #: read later.
        self.results = list(results)


class MessageRefused(BatchError, ValueError):
    """The worker refused the message: it is malformed."""

    status_code = 400


class MessageTooLarge(MessageRefused):
    """The worker refused the message: it is too large."""

    status_code = 413


class BackfillError(BatchError):
    """The backfill cannot start or continue."""


class BackfillComplete(BackfillError):
    """The output is complete already, from the same backfill."""

    def __init__(self, *words: str, failed: int = 0) -> None:
        super().__init__(*words)
        #: How many of its rows have failed.
        self.failed = failed


class BackfillStopped(BackfillError):
    """An operator has stopped the backfill, with ``celery batch jobs stop``."""


class InvalidChunk(BatchError, ValueError):
    """The rows of a chunk are invalid."""

    status_code = 400


class InvalidCost(BatchError, ValueError):
    """The item has no cost: the cost function raised, or returned no number."""

    status_code = 422


class InvalidKey(BatchError, ValueError):
    """The item has no key to form batches by: ``batch_by`` raised, or its value is not hashable."""

    status_code = 422


class ItemTooLarge(BatchError, ValueError):
    """The item costs more than the task's ``max_item_cost``."""

    status_code = 413


class InvalidPayload(BatchError, ValueError):
    """Values that were stored beside the message are missing or changed."""

    status_code = 503


class InvalidRow(BatchError, ValueError):
    """The row of an input does not fit the batch function."""

    status_code = 400


class QueueFull(BatchError):
    """The queue is full: as many requests wait as its limit allows."""

    status_code = 429

    # Its arguments: the message, and the seconds where they are not 1, so that any result
    # serializer carries both.

    def __init__(self, *words: Any, retry_after: float | None = 1.0) -> None:
        if words and not isinstance(words[-1], str):
            *words, retry_after = words  # type: ignore[assignment]
        super().__init__(*(words if retry_after == 1 else (*(words or ("",)), retry_after)))
        #: Estimated seconds until a call is accepted; None if it never will be.
        self.retry_after = retry_after


class StreamerClosed(BatchError):
    """The streamer takes no more requests: its workers were destroyed."""

    status_code = 503


class WorkerLost(BatchError):
    """The worker process died, and no other returned a result in time."""

    status_code = 503


class ModelError(BatchError):
    """The model could not compute an output."""


class LoadFailed(ModelError):
    """The model could not be loaded or warmed up."""

    status_code = 503


class OutOfMemory(ModelError):
    """The item does not fit into memory, even alone."""

    status_code = 503


class PoisonItem(ModelError):
    """The item ended the process that ran it, more than once."""

    status_code = 422


class WrongResultCount(ModelError):
    """The model did not return one output per input."""


class ChunkFailed(ModelError):
    """Some rows of the chunk failed."""

    # Its arguments: the message; `[row, error]` for each failed row; the outputs.  Lists
    # and strings, so that any result serializer carries them; all may be omitted.

    @property
    def failures(self) -> dict[int, str]:
        """The errors by row, counted from 0, each as ``"Type: message"``."""
        return dict(self._list(1))

    @property
    def outputs(self) -> list[Any]:
        """One output per row, None for failed rows."""
        return self._list(2)

    def _list(self, index: int) -> list[Any]:
        # Celery replaces what the result serializer cannot encode by a string.
        value = self.args[index] if len(self.args) > index else []
        return list(value) if isinstance(value, (list, tuple)) else []

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"  # the outputs may be many


def copied(error: BaseException) -> BaseException:
    """Return an equal error for one more caller, if it can be copied: tracebacks add up in one."""
    try:
        twin = copy(error)
    except Exception:  # noqa: BLE001 (its class has arguments of its own)
        return error
    return raised_as(error, twin) if (type(twin), twin.args) == (type(error), error.args) else error


def raised_as(error: BaseException, twin: BaseException) -> BaseException:
    """Return another error, with the cause, the context and the traceback of one."""
    twin.__cause__, twin.__context__ = error.__cause__, error.__context__
    twin.__suppress_context__ = error.__suppress_context__
    return twin.with_traceback(error.__traceback__)
