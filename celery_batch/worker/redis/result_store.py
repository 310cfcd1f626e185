"""Stores the results of a batch in one round trip, and notifies their clients.

Every key, its value, its expiry and its notification are Celery's own, so a stock
`AsyncResult` anywhere finds what it expects.  A success that is stored already
stands, as in Celery; and so does what was revoked while its batch was running.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from itertools import chain, repeat
from typing import Any, NamedTuple

from celery import states
from celery.exceptions import BackendStoreError
from celery.worker.state import requests
from kombu.utils.functional import retry_over_time
from redis.exceptions import (
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)

from celery_batch.protocol import (
    LARGEST_PAYLOAD,
    LARGEST_VALUE,
    NO_WAIT,
    REPLY_CHANNEL,
    REPLY_HEADER,
    STARTED_ID,
    packed_waits,
    write_replies,
)
from celery_batch.worker.executor.model_call import Facts
from celery_batch.worker.intake.value_formats import is_name
from celery_batch.worker.redis.scripts import script

__all__ = [
    "NOTHING_KNOWN",
    "UNKNOWN",
    "Entry",
    "RedisStore",
    "ResultBuffer",
    "entry_of",
    "named_channel",
    "passing_errors",
    "reply_channel",
]


logger = logging.getLogger(__name__)


#: States that are not overwritten.
_STANDING = (states.SUCCESS, states.REVOKED)


#: Results and bytes of one script, or of one larger result: Redis does nothing else meanwhile.
_MOST_RESULTS, _MOST_BYTES = 512, LARGEST_PAYLOAD


#: Seconds until a Redis that forbade scripts is tried again: its rules may be mended.
_TRY_AGAIN = 60.0


#: What to do with a result: look at what is stored first, write it, or keep what is stored.
_LOOK, _WRITE, _KEEP = "l", "w", "k"


#: A channel, what is said there of the batch, and before the id of who has not ended.
_Address = tuple[str, bytes, str]


#: To an address: each task's id, the value stored for it, and its wait.
_Notification = dict[_Address, list[tuple[str, str | bytes, float]]]


class Entry(NamedTuple):
    """
    A state of a task, ready to be stored.

    Args:
        task_id: The task's.
        key: Where it is stored.
        value: As Celery's backend encodes it.
        state: One of Celery's or of the user's own.
        channel: The reply channel to tell; empty for none.
        alike: What is known of the model call, for all that it has answered; empty for nothing.
        wait: Seconds for which this one waited for it.
    """

    task_id: str
    key: bytes
    value: str | bytes
    state: str
    channel: str = ""
    alike: bytes = b""
    wait: float = 0.0

    @property
    def address(self) -> _Address:
        """Whom to tell, and in the same breath as whom."""
        return self.channel, self.alike, STARTED_ID if self.state == states.STARTED else ""


class RedisStore:
    """
    Stores many results at once in the Redis of one of Celery's backends.

    Args:
        backend: A Redis or Sentinel backend.
    """

    #: Why this backend does without scripts for now.
    no_scripts: str | None = None

    #: When scripts are tried again, on the monotonic clock.
    _tries_again_at = math.inf

    _has_failed = False

    _has_warned = False

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def write(self, entries: Iterable[Entry]) -> None:
        """
        Store results and tell who waits for them; done twice, it does no harm.

        Args:
            entries: At most one for each key.

        Raises:
            redis.RedisError: They are not stored, or not all.
        """
        for piece in _pieces(entries):
            self._write_piece(piece)

    def tell(self, entry: Entry) -> None:
        """
        Tell a client what is stored for a task, if that can be done.

        Args:
            entry: The task's, as if it were still to be stored.
        """
        try:
            stored = self._backend.get(entry.key)
        except Exception as error:  # noqa: BLE001 (what is stored is stored)
            self._warn_untold(error)
            return
        if stored:
            name = entry.address[2] + entry.task_id
            self._publish({entry.address: [(name, stored, entry.wait)]})

    def _write_piece(self, piece: list[Entry]) -> None:
        if self.no_scripts is not None and time.monotonic() < self._tries_again_at:
            self._write_without_script(piece)
            return
        try:
            self._run_script(piece)
        except ResponseError as error:
            _raise_passing(error)
            self._write_without_script(piece)
            self._note_failure(error)
        else:
            self.no_scripts, self._has_failed = None, False

    def _note_failure(self, error: ResponseError) -> None:
        """Do without scripts for a while where they are forbidden, else for this time only."""
        level = logging.DEBUG if self._has_failed else logging.WARNING
        self._has_failed = True
        if _forbids_scripts(error):
            self.no_scripts = str(error)
            self._tries_again_at = time.monotonic() + _TRY_AGAIN
            text = "Redis runs no script for us (%s): results take two steps"
        else:
            text = "A script has failed (%s): its results took two steps"
        logger.log(level, text, error)

    def _run_script(self, piece: list[Entry]) -> None:
        unsure = self._call(piece, repeat(_LOOK))
        if unsure:
            rest = [piece[number - 1] for number in unsure]
            stored = self._backend.mget([entry.key for entry in rest])
            self._call(rest, [_KEEP if self._stands(value) else _WRITE for value in stored])

    def _call(self, piece: list[Entry], orders: Iterable[str]) -> list[int]:
        backend = self._backend
        seconds = {states.FAILURE: self._seconds(states.FAILURE) or 0}
        others = self._seconds(states.SUCCESS) or 0
        numbers: dict[_Address, int] = {}
        given = [
            f"{order}{seconds.get(entry.state, others)}"
            f":{numbers.setdefault(entry.address, len(numbers) + 1) if entry.channel else 0} "
            for order, entry in zip(orders, piece, strict=False)
        ]
        waits = packed_waits([entry.wait for entry in piece])
        args: list[Any] = [LARGEST_VALUE, len(backend.task_keyprefix), "".join(given), waits]
        args += [entry.value for entry in piece]
        args += chain.from_iterable(numbers)
        unsure, untold = self._script(
            keys=[entry.key for entry in piece], args=args, client=backend.client
        )
        if untold:
            self._warn_untold(untold)
        return list(unsure)

    @cached_property
    def _script(self) -> Any:
        return self._backend.client.register_script(script("store_results"))

    def _write_without_script(self, piece: list[Entry]) -> None:
        news: _Notification = {}
        stored = self._backend.mget([entry.key for entry in piece])
        with self._backend.client.pipeline(transaction=False) as pipe:
            for entry, former in zip(piece, stored, strict=True):
                stands = self._stands(former)
                if not stands:
                    pipe.set(entry.key, entry.value, ex=self._seconds(entry.state) or None)
                    pipe.publish(entry.key, entry.value)
                if entry.channel:
                    *_, word = entry.address
                    told = (word + entry.task_id, entry.value, entry.wait)
                    if stands:
                        told = (entry.task_id, former, NO_WAIT)
                    news.setdefault(entry.address, []).append(told)
            pipe.execute()
        self._publish(news)

    def _stands(self, stored: Any) -> bool:
        """Say whether what is stored stands, as Celery's backend reads it."""
        if not stored:
            return False
        return self._backend.decode_result(stored)["status"] in _STANDING

    def _publish(self, news: _Notification) -> None:
        """Tell clients, if that can be done: they look for themselves in the end."""
        try:
            with self._backend.client.pipeline(transaction=False) as pipe:
                for (channel, alike, _), told in news.items():
                    replies = [(task_id, value) for task_id, value, _ in told]
                    for payload in write_replies(replies, alike, [wait for *_, wait in told]):
                        pipe.publish(channel, payload)
                pipe.execute()
        except Exception as error:  # noqa: BLE001 (what is stored is stored)
            self._warn_untold(error)

    def _seconds(self, state: str) -> int | None:
        backend = self._backend
        expires = backend.failure_expires if state == states.FAILURE else None
        return backend.expires if expires is None else expires  # type: ignore[no-any-return]

    @classmethod
    def _warn_untold(cls, reason: object) -> None:
        level = logging.DEBUG if cls._has_warned else logging.WARNING
        RedisStore._has_warned = True
        logger.log(level, "Could not tell a client of its results, who will look: %s", reason)


def _pieces(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    piece: list[Entry] = []
    size = 0
    for entry in entries:
        if piece and (len(piece) == _MOST_RESULTS or size + len(entry.value) > _MOST_BYTES):
            yield piece
            piece, size = [], 0
        piece.append(entry)
        size += len(entry.value)
    if piece:
        yield piece


def _forbids_scripts(error: ResponseError) -> bool:
    """Say whether Redis runs no scripts at all: a user may not, or there is no such command."""
    return isinstance(error, NoPermissionError) or "unknown command" in str(error).lower()


def _raise_passing(error: ResponseError) -> None:
    """Raise what passes by itself; Redis before 7 wraps it when a script meets with it."""
    if isinstance(error, (OutOfMemoryError, ReadOnlyError)):
        raise error
    if "OOM command" in str(error):
        raise OutOfMemoryError(str(error)) from error
    if "READONLY" in str(error):
        raise ReadOnlyError(str(error)) from error


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
