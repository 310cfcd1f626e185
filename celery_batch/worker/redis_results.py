"""
A Redis backend that stores in bulk, and tells clients what is stored for them.

Clients that name a reply channel in their messages hear of the final states of
their tasks there, many in one message.  Whoever they are stored by, tracer, worker or
gate, it is through the backend's single store; so that is where this puts itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from celery import states
from celery.backends.redis import RedisBackend, SentinelBackend
from celery.exceptions import BackendStoreError
from celery.worker.state import requests
from kombu.utils.encoding import bytes_to_str
from kombu.utils.functional import retry_over_time
from redis.exceptions import OutOfMemoryError, ReadOnlyError

from celery_batch.replies import REPLY_CHANNEL, REPLY_HEADER
from celery_batch.worker.redis_store import Entry, RedisStore
from celery_batch.worker.shapes import is_name

__all__ = [
    "Recorder",
    "ResultBuffer",
    "buffered_results",
    "named_channel",
    "passing_errors",
    "reply_channel",
    "tell_clients",
]

logger = logging.getLogger(__name__)

#: From a result's fields to what is stored.
Encode = Callable[[dict[str, Any]], str | bytes]


def passing_errors(backend: Any) -> tuple[type[Exception], ...]:
    """
    Return the errors after which the same store may succeed: no connection, memory or master.

    Args:
        backend: Any of Celery's result backends.
    """
    connection = getattr(backend, "connection_errors", (ConnectionError,))
    return (*connection, OutOfMemoryError, ReadOnlyError)


def reply_channel(task_id: str, state: str, request: Any) -> str:
    """
    Return the channel on which a client waits for this state of its task; empty for none.

    Args:
        task_id: The task's.
        state: Only final ones are waited for.
        request: Celery's context of the task, or None where the worker was told by
            an id, as by remote control.
    """
    if state not in states.READY_STATES:
        return ""
    if request is None:
        held = requests.get(task_id)
        channel = held.request_dict.get(REPLY_HEADER) if held is not None else None
    else:
        channel = getattr(request, REPLY_HEADER, None)
    return named_channel(channel)


def named_channel(name: Any) -> str:
    """Return the channel that a header names; empty for what is no name, or not of one."""
    return name if is_name(name) and REPLY_CHANNEL in name else ""


class ResultBuffer:
    """
    Keeps the results of a batch, to store them together.

    Args:
        backend: A Redis or Sentinel backend.
        store: What they are stored with.
    """

    def __init__(self, backend: Any, store: RedisStore) -> None:
        self._backend = backend
        self._store = store
        self._kept: dict[bytes, Entry] = {}

    def keep_meta(self, meta: dict[str, Any], channel: str, encode: Encode) -> None:
        """
        Keep one result.

        Args:
            meta: As Celery's backend makes it.
            channel: The reply channel to tell; empty for none.
            encode: The backend's, or one that does the same.

        Raises:
            BackendStoreError: The result is larger than Redis stores.
        """
        self.keep(_entry(self._backend, meta, channel, encode))

    def keep(self, entry: Entry) -> None:
        """Keep one result, unless the task has succeeded."""
        kept = self._kept.get(entry.key)
        if kept is None or kept.state != states.SUCCESS:
            self._kept[entry.key] = entry

    def announce(self) -> None:
        """Store what has been kept, if that can be done at once: a start is soon no news."""
        kept = self._take()
        try:
            self._store.write(kept)
        except passing_errors(self._backend) as error:
            logger.warning("Could not store that %d tasks have started: %s", len(kept), error)

    def flush(self) -> None:
        """Store what has been kept, trying for as long as Celery's own retry policy says."""
        backend = self._backend
        policy = backend.retry_policy
        say = partial(backend.on_connection_error, policy["max_retries"])
        errors = passing_errors(backend)
        retry_over_time(self._store.write, errors, (self._take(),), errback=say, **policy)

    def _take(self) -> list[Entry]:
        kept, self._kept = self._kept, {}
        return list(kept.values())


class Recorder(threading.local):
    """
    Takes the place of a Redis backend's single store.

    Args:
        backend: A Redis or Sentinel backend, or one derived from them.
    """

    #: What keeps the results of this thread; None to store each at once.
    buffer: ResultBuffer | None = None

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._store_one = type(backend)._store_result.__get__(backend)  # noqa: SLF001
        self._store = RedisStore(backend)
        known = type(backend) in (RedisBackend, SentinelBackend)
        self._stores_in_bulk = known and backend.app.conf.get("batch_bulk", True)

    @classmethod
    def of(cls, backend: Any) -> Recorder | None:
        """Return what records for a backend, now if it did not before; None if it is no Redis."""
        if not isinstance(backend, RedisBackend):
            return None
        found: Recorder | None = vars(backend).get("batch_recorder")
        if found is None:
            found = backend.batch_recorder = cls(backend)
            backend._store_result = found.record  # noqa: SLF001
        return found

    @contextmanager
    def buffering(self) -> Iterator[ResultBuffer | None]:
        """Keep what this thread stores in this block; None where results are not to be kept."""
        if not self._stores_in_bulk:
            yield None
            return
        before = self.buffer
        buffer = self.buffer = ResultBuffer(self._backend, self._store)
        try:
            yield buffer
            buffer.flush()
        finally:
            self.buffer = before

    def record(
        self,
        task_id: str,
        result: Any,
        state: str,
        traceback: Any = None,
        request: Any = None,
        **kwargs: Any,
    ) -> Any:
        """
        Store one result as Celery's backend does, soon or now, and tell who waits for it.

        Raises:
            BackendStoreError: The result is larger than Redis stores.
        """
        channel = reply_channel(task_id, state, request)
        if self.buffer is None and not (channel and self._stores_in_bulk):
            self._store_one(task_id, result, state, traceback, request=request, **kwargs)
            if channel:
                self._store.tell(bytes_to_str(task_id), channel)
            return result
        meta = self._backend._get_result_meta(  # noqa: SLF001
            result=result, state=state, traceback=traceback, request=request
        )
        meta["task_id"] = bytes_to_str(task_id)
        entry = _entry(self._backend, meta, channel, self._backend.encode)
        if self.buffer is None or getattr(request, "chord", None):
            # Its body may start as soon as this part is counted, and look at the result.
            self._backend.ensure(self._store.write, ([entry],))
        else:
            self.buffer.keep(entry)
        return result


def _entry(backend: Any, meta: dict[str, Any], channel: str, encode: Encode) -> Entry:
    task_id, state, value = meta["task_id"], meta["status"], encode(meta)
    if isinstance(value, str) and len(value) > backend._MAX_STR_VALUE_SIZE:  # noqa: SLF001
        raise BackendStoreError("value too large for Redis", state=state, task_id=task_id)
    return Entry(task_id, backend.get_key_for_task(task_id), value, state, channel)


def tell_clients(app: Any, tasks: Iterable[Any]) -> None:
    """
    Have clients told of whatever is stored for them, in this process and those it forks.

    Args:
        app: The Celery app.
        tasks: Its batch tasks, which may have backends of their own.
    """
    if "_get_backend" not in vars(app):  # each thread makes a backend of its own there
        make = app._get_backend  # noqa: SLF001

        def make_and_record() -> Any:
            backend = make()
            Recorder.of(backend)
            return backend

        app._get_backend = make_and_record  # noqa: SLF001
    for backend in (app.backend, *(task.backend for task in tasks)):
        Recorder.of(backend)


@contextmanager
def buffered_results(task: Any) -> Iterator[ResultBuffer | None]:
    """
    Collect the results stored in this block and store them at its end.

    Args:
        task: The batch task.

    Yields:
        The buffer, or None where results are stored one by one: on other backends, and
        with ``batch_bulk = False``.
    """
    recorder = Recorder.of(task.backend)
    if recorder is None:
        yield None
        return
    with recorder.buffering() as buffer:
        yield buffer
