"""
Makes Celery's Redis result backend store in bulk, and notify clients.

A client that names a reply channel in its messages is notified there of the starts and ends of
its tasks, many in one message.  Tracers, the worker and the message validation all store through
the backend's `_store_result`, so that is what this replaces.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import Enum, auto
from functools import partial
from typing import Any

from celery import states
from celery.backends.redis import RedisBackend, SentinelBackend
from celery.exceptions import BackendStoreError
from celery.worker.state import requests
from kombu.utils.encoding import bytes_to_str
from kombu.utils.functional import retry_over_time

from celery_batch.compat.fast_paths import FastPaths
from celery_batch.compat.results import (
    largest_value,
    on_new_backend,
    result_meta,
    store_with,
)
from celery_batch.payloads.arguments import may_be_large
from celery_batch.payloads.results import with_stored_result
from celery_batch.protocol import READS_PAYLOADS, REPLY_CHANNEL, REPLY_HEADER
from celery_batch.worker.intake.message_format import is_name
from celery_batch.worker.redis.result_store import Entry, RedisStore, temporary_errors

__all__ = [
    "BulkResultWriter",
    "Facts",
    "named_channel",
    "notify_clients",
    "storing_results",
]

logger = logging.getLogger(__name__)

#: The encoded facts that all requests of a model call share, and the request's own wait.
Facts = tuple[bytes, float]

#: The facts of a result that no model call is known for.
_UNKNOWN_FACTS: Facts = (b"", 0.0)

_NO_FACTS: Mapping[str, Facts] = {}

#: States of which clients are notified; others only by Celery's own means.
_NOTIFIED = states.READY_STATES | {states.STARTED}

#: Encodes a result's fields.
_Encode = Callable[[dict[str, Any]], str | bytes]


class _Storing(Enum):
    """How a thread stores results for the time being."""

    USUAL = auto()  # as Celery does, but in one round trip if a client is to be notified
    EACH = auto()  # at once, in one round trip
    TOGETHER = auto()  # at the end of a block


class _Block:
    """What one thread collects in a block of code."""

    def __init__(self, storing: _Storing = _Storing.USUAL) -> None:
        self.storing = storing
        self.entries: dict[bytes, Entry] = {}
        #: The facts of the model calls of its tasks, by task id.
        self.facts: Mapping[str, Facts] = _NO_FACTS


class _OfThread(threading.local):
    """The block that one thread is in."""

    def __init__(self) -> None:
        self.block = _Block()


class BulkResultWriter:
    """Replaces a Redis backend's `_store_result`."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._store_one = store_with(backend, self.record)
        self._store = RedisStore(backend)
        self._result_meta, self._largest = result_meta(backend), largest_value(backend)
        self._notifies = FastPaths.of(backend.app).is_on("notify")
        self._thread = _OfThread()

    @classmethod
    def of(cls, backend: Any) -> BulkResultWriter | None:
        """Return a backend's writer, made on first use; None where Celery's own code does all."""
        is_known = type(backend) in (RedisBackend, SentinelBackend)
        if not (is_known and FastPaths.of(backend.app).is_on("store")):
            return None
        found: BulkResultWriter | None = vars(backend).get("batch_result_writer")
        if found is None:
            found = backend.batch_result_writer = cls(backend)
        return found

    @contextmanager
    def storing(self, *, together: bool) -> Iterator[BulkResultWriter]:
        """Store what this thread stores in this block at its end, or each in one round trip."""
        thread = self._thread
        how = _Storing.TOGETHER if together else _Storing.EACH
        before, thread.block = thread.block, _Block(how)
        try:
            yield self
            self._write(self._take())
        finally:
            thread.block = before

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
        channel = _reply_channel(task_id, state, request) if self._notifies else ""
        block, name = self._thread.block, bytes_to_str(task_id)
        if block.storing is _Storing.USUAL and not channel:
            self._store_one(task_id, result, state, traceback, request=request, **kwargs)
            return result
        meta = self._result_meta(result=result, state=state, traceback=traceback, request=request)
        meta["task_id"] = name
        reads = bool(getattr(request, READS_PAYLOADS, None))
        task = getattr(request, "task", None) or ""
        # The body of a chord may start, and read the result, as soon as this part is counted.
        if block.storing is _Storing.TOGETHER and not getattr(request, "chord", None):
            self.add(meta, channel, self._backend.encode, task, reads_payloads=reads)
            return result
        entry = self._entry(meta, channel, self._backend.encode, task, reads_payloads=reads)
        if block.storing is _Storing.EACH:
            self._write([entry])
        else:
            self._backend.ensure(self._store.write, ([entry],))
        return result

    def add(
        self,
        meta: dict[str, Any],
        channel: str,
        encode: _Encode,
        task: str = "",  # for errors
        *,
        reads_payloads: bool = False,
    ) -> None:
        """Collect a result of Celery's backend, unless the task has succeeded before."""
        entries = self._thread.block.entries
        channel = channel if self._notifies else ""
        entry = self._entry(meta, channel, encode, task, reads_payloads=reads_payloads)
        former = entries.get(entry.key)
        if former is None or former.state != states.SUCCESS:
            entries[entry.key] = entry

    def attach(self, facts: Mapping[str, Facts]) -> None:
        """Attach the facts of model calls, by task id, to what this thread stores."""
        self._thread.block.facts = facts

    def announce(self) -> None:
        """Store what has been collected, if that is possible at once; else all but starts later."""
        entries = self._take()
        try:
            self._store.write(entries)
        except Exception as error:
            kept = {each.key: each for each in entries if each.state != states.STARTED}
            self._thread.block.entries = kept
            if not isinstance(error, temporary_errors(self._backend)):
                raise
            logger.warning(
                "Could not store %d results yet, nor that %d tasks have started: %s",
                len(kept),
                len(entries) - len(kept),
                error,
            )

    def _write(self, entries: list[Entry]) -> None:
        """Store these, retried as Celery's own retry policy says."""
        if not entries:
            return
        backend = self._backend
        policy = backend.retry_policy
        errback = partial(backend.on_connection_error, policy["max_retries"])
        errors = temporary_errors(backend)
        retry_over_time(self._store.write, errors, (entries,), errback=errback, **policy)

    def _take(self) -> list[Entry]:
        block = self._thread.block
        entries, block.entries = block.entries, {}
        return list(entries.values())

    def _entry(
        self,
        meta: dict[str, Any],
        channel: str,
        encode: _Encode,
        task: str,
        *,
        reads_payloads: bool,
    ) -> Entry:
        backend, task_id, state = self._backend, meta["task_id"], meta["status"]
        if reads_payloads and state == states.SUCCESS and may_be_large((meta["result"],), None):
            meta = with_stored_result(backend, meta, task)
        value = encode(meta)
        if isinstance(value, str) and len(value) > self._largest:
            raise BackendStoreError("value too large for Redis", state=state, task_id=task_id)
        facts = self._thread.block.facts.get(task_id, _UNKNOWN_FACTS)
        return Entry(task_id, backend.get_key_for_task(task_id), value, state, channel, *facts)


def _reply_channel(task_id: str, state: str, request: Any) -> str:
    """Return the channel on which a client is notified of a start or an end; empty for none."""
    if state not in _NOTIFIED:
        return ""
    if request is None:  # as by remote control: only the id is known
        held = requests.get(task_id)
        channel = held.request_dict.get(REPLY_HEADER) if held is not None else None
    else:
        channel = getattr(request, REPLY_HEADER, None)
    return named_channel(channel)


def named_channel(name: Any) -> str:
    """Return the reply channel in a header; empty if it is not one."""
    return name if is_name(name) and REPLY_CHANNEL in name else ""


def notify_clients(app: Any, tasks: Iterable[Any]) -> None:
    """Notify clients of all results stored in this process and those it forks."""
    if FastPaths.of(app).is_on("store"):
        on_new_backend(app, BulkResultWriter.of)
        for backend in (app.backend, *(task.backend for task in tasks)):
            BulkResultWriter.of(backend)


def storing_results(
    task: Any, *, together: bool = True
) -> AbstractContextManager[BulkResultWriter | None]:
    """Return a context that stores results together at its end, or each in one round trip."""
    writer = BulkResultWriter.of(task.backend)
    return nullcontext() if writer is None else writer.storing(together=together)
