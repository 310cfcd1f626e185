"""

A Redis result backend that stores in bulk, and notifies clients.

Clients that name a reply channel in their messages hear of the starts and the ends of
their tasks there, many in one message.  Whoever they are stored by, tracer, worker or
gate, it is through the backend's single store; so that is where this puts itself.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from celery.backends.redis import RedisBackend, SentinelBackend
from kombu.utils.encoding import bytes_to_str

from celery_batch.worker.executor.model_call import Facts
from celery_batch.worker.redis.result_store import (
    NOTHING_KNOWN,
    UNKNOWN,
    Entry,
    RedisStore,
    ResultBuffer,
    entry_of,
    reply_channel,
)

__all__ = ["Recorder", "buffered_results", "explain_results", "stores_in_bulk", "tell_clients"]


def stores_in_bulk(backend: Any) -> bool:
    """
    Return whether the results of a batch are stored together.

    Args:
        backend: Celery's result backend.
    """
    known = type(backend) in (RedisBackend, SentinelBackend)
    return known and bool(backend.app.conf.get("batch_bulk", True))


class Recorder(threading.local):
    """
    Takes the place of a Redis backend's single store.

    Args:
        backend: A Redis or Sentinel backend, or one derived from them.
    """

    #: What keeps the results of this thread; None to store each at once.
    buffer: ResultBuffer | None = None

    #: What this thread knows of how answers were made, by their tasks' ids.
    facts: Mapping[str, Facts] = NOTHING_KNOWN

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._store_one = type(backend)._store_result.__get__(backend)  # noqa: SLF001
        self._store = RedisStore(backend)
        self._stores_in_bulk = stores_in_bulk(backend)

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

    def explain(self, facts: Mapping[str, Facts]) -> None:
        """
        Say how the answers were made that this thread stores in the block it is in.

        Args:
            facts: What is known of each, by its task's id.
        """
        self.facts = facts
        if self.buffer is not None:
            self.buffer.facts = facts

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
        facts = self.facts.get(task_id, UNKNOWN)
        if self.buffer is None and not (channel and self._stores_in_bulk):
            self._store_one(task_id, result, state, traceback, request=request, **kwargs)
            if channel:
                name = bytes_to_str(task_id)
                key = self._backend.get_key_for_task(name)
                self._store.tell(Entry(name, key, "", state, channel, *facts))
            return result
        meta = self._backend._get_result_meta(  # noqa: SLF001
            result=result, state=state, traceback=traceback, request=request
        )
        meta["task_id"] = bytes_to_str(task_id)
        entry = entry_of(self._backend, meta, channel, self._backend.encode, facts)
        if self.buffer is None or getattr(request, "chord", None):
            # Its body may start as soon as this part is counted, and look at the result.
            self._backend.ensure(self._store.write, ([entry],))
        else:
            self.buffer.keep(entry)
        return result


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


def explain_results(task: Any, facts: Mapping[str, Facts]) -> None:
    """
    Say how the answers were made that this thread stores next, to `buffered_results`' end.

    Args:
        task: The batch task.
        facts: What is known of each, by its task's id.
    """
    recorder = Recorder.of(task.backend)
    if recorder is not None:
        recorder.explain(facts)
