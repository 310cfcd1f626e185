"""Results that are forgotten together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery_batch.client.heard import HeardResult
from celery_batch.client.store import ResultStore

__all__ = ["forget_many"]


def forget_many(results: Iterable[Any]) -> None:
    """
    Forget results, and delete many at once where Celery stores them in Redis.

    Args:
        results: Of tasks that have ended.

    Raises:
        Exception: What a backend said first; the others were forgotten as far as possible.
    """
    keys: dict[Any, list[Any]] = {}
    failure: Exception | None = None
    for result in results:
        try:
            backend = result.backend
            if _is_ours_alone(result, backend):
                keys.setdefault(backend, []).append(backend.get_key_for_task(result.id))
                result.let_go()
            else:
                result.forget()
        except Exception as error:  # noqa: BLE001 (the next one may be forgotten)
            failure = failure or error
    for backend, some in keys.items():
        backend.client.delete(*some)
    if failure is not None:
        raise failure


def _is_ours_alone(result: Any, backend: Any) -> bool:
    """Return whether nothing of a result is known to Celery but what is stored of it."""
    return (
        isinstance(result, HeardResult)
        and ResultStore.knows(backend)
        and not backend.always_retry  # which is Celery's to do
        and not result.parent
        and result.is_heard
        and bool(result.reply.value)  # else it was looked up in Celery's way
    )
