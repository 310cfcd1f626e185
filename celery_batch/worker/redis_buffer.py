"""The results of a batch, kept to be stored together, and whom to tell of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from celery import states
from celery.exceptions import BackendStoreError
from celery.worker.state import requests
from kombu.utils.functional import retry_over_time
from redis.exceptions import OutOfMemoryError, ReadOnlyError

from celery_batch.replies import REPLY_CHANNEL, REPLY_HEADER
from celery_batch.worker.facts import Facts
from celery_batch.worker.redis_store import Entry, RedisStore
from celery_batch.worker.shapes import is_name

__all__ = [
    "NOTHING_KNOWN",
    "UNKNOWN",
    "ResultBuffer",
    "entry_of",
    "named_channel",
    "passing_errors",
    "reply_channel",
]

logger = logging.getLogger(__name__)

#: What is told of an answer that nobody knows the making of.
UNKNOWN: Facts = (b"", 0.0)
NOTHING_KNOWN: Mapping[str, Facts] = {}

#: States that a client hears of; those between come with Celery's own means.
_TOLD = states.READY_STATES | {states.STARTED}

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
        state: Only starts and ends are waited for.
        request: Celery's context of the task, or None where the worker was told by
            an id, as by remote control.
    """
    if state not in _TOLD:
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
        #: What is known of how answers were made, by their tasks' ids.
        self.facts: Mapping[str, Facts] = NOTHING_KNOWN

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
        facts = self.facts.get(meta["task_id"], UNKNOWN)
        self.keep(entry_of(self._backend, meta, channel, encode, facts))

    def keep(self, entry: Entry) -> None:
        """Keep one result, unless the task has succeeded."""
        kept = self._kept.get(entry.key)
        if kept is None or kept.state != states.SUCCESS:
            self._kept[entry.key] = entry

    def announce(self) -> None:
        """
        Store what has been kept, if that can be done at once.

        A start that cannot be stored is dropped: it is soon no news.  Any other state is kept
        for `flush`: some items end before the model is called, and their callers wait.
        """
        kept = self._take()
        try:
            self._store.write(kept)
        except Exception as error:
            self._kept = {each.key: each for each in kept if each.state != states.STARTED}
            if not isinstance(error, passing_errors(self._backend)):
                raise
            logger.warning(
                "Could not store %d results yet, nor that %d tasks have started: %s",
                len(self._kept),
                len(kept) - len(self._kept),
                error,
            )

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


def entry_of(
    backend: Any, meta: dict[str, Any], channel: str, encode: Encode, facts: Facts
) -> Entry:
    """
    Return one result, ready to be stored.

    Args:
        backend: A Redis or Sentinel backend.
        meta: As Celery's backend makes it.
        channel: The reply channel to tell; empty for none.
        encode: The backend's, or one that does the same.
        facts: What is known of how it was made.

    Raises:
        BackendStoreError: The result is larger than Redis stores.
    """
    task_id, state, value = meta["task_id"], meta["status"], encode(meta)
    if isinstance(value, str) and len(value) > backend._MAX_STR_VALUE_SIZE:  # noqa: SLF001
        raise BackendStoreError("value too large for Redis", state=state, task_id=task_id)
    return Entry(task_id, backend.get_key_for_task(task_id), value, state, channel, *facts)
