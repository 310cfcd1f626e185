"""
The results of a batch in two round trips, where Celery makes two for each.

Every key, its value, its expiry and its notification stay Celery's, so a stock
`AsyncResult` anywhere finds what it expects.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from celery import states
from celery.backends.redis import RedisBackend, SentinelBackend
from celery.exceptions import BackendStoreError
from kombu.utils.encoding import bytes_to_str
from kombu.utils.functional import retry_over_time
from redis.exceptions import OutOfMemoryError, ReadOnlyError

__all__ = ["ResultBuffer", "buffered_results", "passing_errors"]

logger = logging.getLogger(__name__)


def passing_errors(backend: Any) -> tuple[type[Exception], ...]:
    """
    Return the errors after which the same store may succeed: no connection, memory or master.

    Args:
        backend: Any of Celery's result backends.
    """
    connection = getattr(backend, "connection_errors", (ConnectionError,))
    return (*connection, OutOfMemoryError, ReadOnlyError)


class ResultBuffer:
    """
    Takes the place of a Redis backend's single store while a batch is settled.

    Args:
        backend: Celery's Redis backend of this thread.
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._store_one = backend._store_result  # noqa: SLF001
        self._kept: dict[str, tuple[Any, str]] = {}

    def store(
        self,
        task_id: str,
        result: Any,
        state: str,
        traceback: Any = None,
        request: Any = None,
        **kwargs: Any,
    ) -> Any:
        """
        Keep one result; what cannot be encoded is that item's error, here and now.

        Raises:
            BackendStoreError: The result is larger than Redis stores.
        """
        if getattr(request, "chord", None):
            # Its body may start as soon as this part is counted, and look at the result.
            return self._store_one(task_id, result, state, traceback, request=request, **kwargs)
        backend = self._backend
        meta = backend._get_result_meta(  # noqa: SLF001
            result=result, state=state, traceback=traceback, request=request
        )
        meta["task_id"] = bytes_to_str(task_id)
        value = backend.encode(meta)
        if isinstance(value, str) and len(value) > backend._MAX_STR_VALUE_SIZE:  # noqa: SLF001
            raise BackendStoreError("value too large for Redis", state=state, task_id=task_id)
        key = backend.get_key_for_task(task_id)
        if self._kept.get(key, (None, ""))[1] != states.SUCCESS:
            self._kept[key] = value, state
        return result

    def announce(self) -> None:
        """Store what has been kept, if that can be done at once: a start is soon no news."""
        kept, self._kept = self._kept, {}
        try:
            self._store(kept)
        except passing_errors(self._backend) as error:
            logger.warning("Could not store that %d tasks have started: %s", len(kept), error)

    def flush(self) -> None:
        """
        Store what has been kept, trying for as long as Celery's own retry policy says.

        A success that is stored already stands, as in Celery; and so does what was
        revoked while its batch was running.
        """
        kept, self._kept = self._kept, {}
        backend = self._backend
        policy = backend.retry_policy
        say = partial(backend.on_connection_error, policy["max_retries"])
        retry_over_time(self._store, passing_errors(backend), (kept,), errback=say, **policy)

    def _store(self, kept: dict[str, tuple[Any, str]]) -> None:
        if not kept:
            return
        stored = zip(kept, self._backend.mget(list(kept)), strict=True)
        done = {key for key, value in stored if value and self._is_final(value)}
        fresh = [(key, *kept[key]) for key in kept if key not in done]
        if fresh:
            self._write(fresh)

    def _is_final(self, value: Any) -> bool:
        status = self._backend.decode_result(value)["status"]
        return status in (states.SUCCESS, states.REVOKED)

    def _write(self, entries: list[tuple[str, Any, str]]) -> None:
        backend = self._backend
        with backend.client.pipeline(transaction=False) as pipe:
            for key, value, state in entries:
                expires = backend.failure_expires if state == states.FAILURE else None
                expires = backend.expires if expires is None else expires
                if expires:
                    pipe.setex(key, expires, value)
                else:
                    pipe.set(key, value)
                pipe.publish(key, value)
            pipe.execute()


@contextmanager
def buffered_results(task: Any) -> Iterator[ResultBuffer | None]:
    """
    Collect the results stored in this block and store them at its end.

    Args:
        task: The batch task.

    Yields:
        The buffer, or None where results are stored one by one: on other backends,
        with ``batch_bulk = False``, or on a backend that threads share.
    """
    backend = task.backend
    shared = task.app.conf.get("result_backend_thread_safe") and (
        threading.current_thread() is not threading.main_thread()
    )
    ours = type(backend) in (RedisBackend, SentinelBackend)
    if not ours or shared or not task.app.conf.get("batch_bulk", True):
        yield None
        return
    buffer = ResultBuffer(backend)
    backend._store_result = buffer.store  # noqa: SLF001
    try:
        yield buffer
        buffer.flush()
    finally:
        del backend._store_result  # noqa: SLF001
