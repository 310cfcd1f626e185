"""
Makes Celery's Redis result backend store in bulk, and notify clients.

A client that names a reply channel in its messages is notified there of the starts and ends of
its tasks, many in one message.  Tracers, the worker and the message validation all store through
the backend's `_store_result`, so that is what this replaces.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from celery.backends.redis import RedisBackend, SentinelBackend
from kombu.utils.encoding import bytes_to_str

from celery_batch.worker.executor.model_call import Facts
from celery_batch.worker.redis.result_store import (
    NO_FACTS,
    UNKNOWN_FACTS,
    Entry,
    RedisStore,
    ResultBuffer,
    entry_of,
    reply_channel,
)

__all__ = [
    "BulkResultWriter",
    "attach_facts",
    "buffered_results",
    "notify_clients",
    "stores_in_bulk",
]


def stores_in_bulk(backend: Any) -> bool:
    """Return whether a result backend stores the results of a batch together."""
    known = type(backend) in (RedisBackend, SentinelBackend)
    return known and bool(backend.app.conf.get("batch_bulk", True))


class BulkResultWriter(threading.local):
    """
    Replaces a Redis backend's `_store_result`.

    Args:
        backend: A Redis or Sentinel backend, or one derived from them.
    """

    #: Collects the results of this thread; None to store each at once.
    buffer: ResultBuffer | None = None

    #: The facts of the model calls of this thread's tasks, by task id.
    facts: Mapping[str, Facts] = NO_FACTS

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._store_one = type(backend)._store_result.__get__(backend)  # noqa: SLF001
        self._store = RedisStore(backend)
        self._stores_in_bulk = stores_in_bulk(backend)

    @classmethod
    def of(cls, backend: Any) -> BulkResultWriter | None:
        """Return a backend's recorder, made on first use; None if the backend is not Redis."""
        if not isinstance(backend, RedisBackend):
            return None
        found: BulkResultWriter | None = vars(backend).get("batch_result_writer")
        if found is None:
            found = backend.batch_result_writer = cls(backend)
            backend._store_result = found.record  # noqa: SLF001
        return found

    @contextmanager
    def buffering(self) -> Iterator[ResultBuffer | None]:
        """Collect what this thread stores in this block; None if it stores each result at once."""
        before = self.buffer, self.facts
        try:
            if self._stores_in_bulk:
                buffer = self.buffer = ResultBuffer(self._backend, self._store)
                yield buffer
                buffer.flush()
            else:
                yield None
        finally:
            self.buffer, self.facts = before

    def record(
        self,
        task_id: str,
        result: Any,
        state: str,
        traceback: Any = None,
        request: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Store one result as Celery's backend does, soon or now, and notify its client."""
        channel = reply_channel(task_id, state, request)
        facts = self.facts.get(task_id, UNKNOWN_FACTS)
        if self.buffer is None and not (channel and self._stores_in_bulk):
            self._store_one(task_id, result, state, traceback, request=request, **kwargs)
            if channel:
                name = bytes_to_str(task_id)
                key = self._backend.get_key_for_task(name)
                self._store.notify(Entry(name, key, "", state, channel, *facts))
            return result
        meta = self._backend._get_result_meta(  # noqa: SLF001
            result=result, state=state, traceback=traceback, request=request
        )
        meta["task_id"] = bytes_to_str(task_id)
        encode = self._backend.encode
        if self.buffer is None or getattr(request, "chord", None):
            # Its body may start, and read the result, as soon as this part of the chord is counted.
            entry = entry_of(self._backend, meta, channel, encode, facts)
            self._backend.ensure(self._store.write, ([entry],))
        else:
            self.buffer.add(meta, channel, encode)
        return result


def notify_clients(app: Any, tasks: Iterable[Any]) -> None:
    """
    Notify clients of all results stored in this process and those it forks.

    Args:
        app: The Celery app.
        tasks: Its batch tasks, which may have their own backends.
    """
    if "_get_backend" not in vars(app):  # with which each thread makes its own backend
        make = app._get_backend  # noqa: SLF001

        def make_and_record() -> Any:
            backend = make()
            BulkResultWriter.of(backend)
            return backend

        app._get_backend = make_and_record  # noqa: SLF001
    for backend in (app.backend, *(task.backend for task in tasks)):
        BulkResultWriter.of(backend)


def buffered_results(task: Any) -> AbstractContextManager[ResultBuffer | None]:
    """
    Return a context that collects the results stored in it, and stores them at its end.

    Its value is the buffer, or None where results are stored one by one: on other backends,
    and with ``batch_bulk = False``.
    """
    recorder = BulkResultWriter.of(task.backend)
    return nullcontext() if recorder is None else recorder.buffering()


def attach_facts(task: Any, facts: Mapping[str, Facts]) -> None:
    """Attach the facts of model calls, by task id, to results stored in `buffered_results`."""
    recorder = BulkResultWriter.of(task.backend)
    if recorder is not None:
        recorder.facts = facts
        if recorder.buffer is not None:
            recorder.buffer.facts = facts
