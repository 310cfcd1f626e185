"""Many calls in one write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

from kombu.exceptions import OperationalError

from celery_batch.client.gathering import Gathering, gathered_by
from celery_batch.client.publisher import Publisher
from celery_batch.errors import BatchError, ConfigurationError

__all__ = ["PartlySent", "apply_chunks", "apply_many", "partly_sent"]


class PartlySent(BatchError, OperationalError):
    """
    Some of many calls were sent, and then no more.

    Of the others, those of the write that failed may have arrived nevertheless.

    Args:
        message: Why.
        sent: The results of those that were surely sent, in order.
        places: The same by their places among the calls, counted from 0.
    """

    http = 503

    def __init__(
        self, message: str, sent: list[Any] | None = None, places: dict[int, Any] | None = None
    ) -> None:
        super().__init__(message)
        #: Results of the calls that were surely sent.
        self.sent = sent or []
        #: The same by their places among the calls.
        self.places = places or {}


def apply_many(task: Any, rows: Iterable[Any], options: dict[str, Any]) -> list[Any]:
    """
    Send one call for each row.

    Args:
        task: The task that is called.
        rows: Positional and keyword arguments of each call.
        options: As for `apply_async`, the same for all.

    Raises:
        PartlySent: Not all of them could be sent.
        QueueFull: There is no room for all of them.
    """
    if "task_id" in options:
        raise ConfigurationError(f"{task.name}: many calls cannot have one task_id")
    with Publisher.of(task.app).room().passing(task, options, rows) as passing:
        return _apply_many(task, passing, options)


def _apply_many(task: Any, rows: Iterable[Any], options: dict[str, Any]) -> list[Any]:
    results: list[Any] = []
    with _in_one_write(results) as gathering:
        series = None
        for args, kwargs in rows:  # whoever makes the rows may send and wait meanwhile
            if series is None or not series.holds():
                series = Publisher.of(task.app).series(task, options)
            result = series and series.send(args, kwargs, gathering)
            if result is None:
                call = partial(task.apply_async, args, kwargs, **options)
                result = gathered_by(gathering, task, call)
            results.append(result)
    return results


def apply_chunks(task: Any, chunks: Iterable[Any], options: dict[str, Any]) -> list[Any]:
    """
    Send some chunks; where ``max_queue`` holds, each is let in by itself.

    Args:
        task: The task that is called.
        chunks: The columns of each.
        options: As for `apply_async`, the same for all.

    Raises:
        PartlySent: Not all of them could be sent.
    """
    results: list[Any] = []
    with _in_one_write(results) as gathering:
        for columns in chunks:
            call = partial(task.apply_chunk, *columns, **options)
            results.append(gathered_by(gathering, task, call))
    return results


@contextmanager
def _in_one_write(results: list[Any]) -> Iterator[Gathering]:
    """Write what is gathered in this block at its end, and say what was sent if not all was."""
    with closing(Gathering()) as gathering:
        try:
            yield gathering
            gathering.flush()
        except Exception as error:
            if not gathering.sent:
                raise
            raise partly_sent(_by_place(results, gathering), error) from error


def _by_place(results: list[Any], gathering: Gathering) -> dict[int, Any]:
    """Return the results of the calls that were surely sent, by their places."""
    sent = {each.id for each in gathering.sent}
    return {place: result for place, result in enumerate(results) if result.id in sent}


def partly_sent(places: dict[int, Any], error: Exception) -> PartlySent:
    """
    Return the error that says which of many calls were sent.

    Args:
        places: Results of the calls that were surely sent, by their places among all calls.
        error: Why the others were not.
    """
    sent = list(places.values())
    return PartlySent(f"only {len(sent)} calls were surely sent: {error}", sent, places)
