"""Stores the results of a batch in one round trip, and notifies their clients.

Keys, values, expiry and published values are Celery's own, so any stock `AsyncResult` works.
A stored success is not overwritten, as in Celery, and neither is the state of a request that
was revoked while its batch was running.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain, repeat
from typing import Any, NamedTuple

from celery import states
from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError

from celery_batch.compat.older_celery import expiry_of_result
from celery_batch.compat.redis import is_full, is_read_only
from celery_batch.protocol import (
    LARGEST_PAYLOAD,
    LARGEST_VALUE,
    NO_WAIT,
    STARTED_ID,
    pack_waits,
    write_replies,
)
from celery_batch.worker.redis.scripts import lacks_command, script

__all__ = ["Entry", "RedisStore", "temporary_errors"]

logger = logging.getLogger(__name__)

#: States that are not overwritten.
_FINAL = (states.SUCCESS, states.REVOKED)

#: Results and bytes in one script, or one larger result: Redis serves no other client meanwhile.
_MOST_RESULTS, _MOST_BYTES = 512, LARGEST_PAYLOAD

#: Seconds until a Redis that refused scripts is tried again: its ACL may have been changed.
_TRY_AGAIN = 60.0

#: What to do with a result: look at the stored one first, write it, or keep the stored one.
_LOOK, _WRITE, _KEEP = "l", "w", "k"

#: A reply channel, the facts of the batch, and the prefix of the id of a task that has not ended.
_Address = tuple[str, bytes, str]

#: For each address, the id, stored value and wait of each task.
_Notifications = dict[_Address, list[tuple[str, str | bytes, float]]]


class Entry(NamedTuple):
    """A state of a task, ready to be stored."""

    task_id: str
    key: bytes  # the key in Redis
    value: str | bytes  # as Celery's backend encodes it
    state: str  # one of Celery's, or the user's own
    channel: str = ""  # the reply channel to notify; empty for none
    #: The facts of the model call, the same for all its requests; empty for none.
    batch_facts: bytes = b""
    wait: float = 0.0  # seconds for which this request waited for it

    @property
    def address(self) -> _Address:
        """Entries with the same address are in one notification."""
        return self.channel, self.batch_facts, STARTED_ID if self.state == states.STARTED else ""


class RedisStore:
    """Stores many results at once in the Redis of one of Celery's backends."""

    #: Until when this backend does without scripts, on the monotonic clock.
    without_scripts_until = 0.0

    _has_failed = False

    _has_warned = False

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def write(self, entries: Iterable[Entry]) -> None:
        """Store results, one for each key, and notify their clients; idempotent."""
        for piece in _pieces(entries):
            self._write_piece(piece)

    def _write_piece(self, piece: list[Entry]) -> None:
        if time.monotonic() < self.without_scripts_until:
            self._write_without_script(piece)
            return
        try:
            self._run_script(piece)
        except ResponseError as error:
            if is_read_only(error):  # the next try connects anew, perhaps to another Redis
                self._backend.client.connection_pool.disconnect()
            _raise_temporary(error)
            self._write_without_script(piece)
            self._note_failure(error)
        else:
            self._has_failed = False

    def _note_failure(self, error: ResponseError) -> None:
        """Do without scripts for a while if Redis refuses all, else this time only."""
        level = logging.DEBUG if self._has_failed else logging.WARNING
        self._has_failed = True
        if lacks_command(error):
            self.without_scripts_until = time.monotonic() + _TRY_AGAIN
            text = "Redis runs no script for us (%s): results take two steps"
        else:
            text = "A script has failed (%s): its results took two steps"
        logger.log(level, text, error)

    def _run_script(self, piece: list[Entry]) -> None:
        unsure = self._call(piece, repeat(_LOOK))
        if unsure:
            rest = [piece[number - 1] for number in unsure]
            stored = self._backend.mget([entry.key for entry in rest])
            self._call(rest, [_KEEP if self._is_final(value) else _WRITE for value in stored])

    def _call(self, piece: list[Entry], orders: Iterable[str]) -> list[int]:
        """Run the script, whose arguments ``store_results.lua`` describes; return the unsure."""
        backend = self._backend
        seconds = {
            state: expiry_of_result(backend, state) or 0
            for state in (states.SUCCESS, states.FAILURE)
        }
        addresses: dict[_Address, int] = {}  # with the number of each
        instructions = []
        for order, entry in zip(orders, piece, strict=False):
            expires = seconds.get(entry.state, seconds[states.SUCCESS])
            notified = entry.channel and addresses.setdefault(entry.address, len(addresses) + 1)
            instructions.append(f"{order}{expires}:{notified or 0} ")
        unsure, unnotified = self._script(
            keys=[entry.key for entry in piece],
            args=[
                LARGEST_VALUE,
                len(backend.task_keyprefix),
                "".join(instructions),
                pack_waits([entry.wait for entry in piece]),
                *(entry.value for entry in piece),
                *chain.from_iterable(addresses),
            ],
            client=backend.client,
        )
        if unnotified:
            self._warn_unnotified(unnotified)
        return list(unsure)

    @cached_property
    def _script(self) -> Any:
        return self._backend.client.register_script(script("store_results"))

    def _write_without_script(self, piece: list[Entry]) -> None:
        notifications: _Notifications = {}
        stored = self._backend.mget([entry.key for entry in piece])
        with self._backend.client.pipeline(transaction=False) as pipe:
            for entry, former in zip(piece, stored, strict=True):
                is_final = self._is_final(former)
                if not is_final:
                    ex = expiry_of_result(self._backend, entry.state) or None
                    pipe.set(entry.key, entry.value, ex=ex)
                    pipe.publish(entry.key, entry.value)
                if entry.channel:
                    *_, prefix = entry.address
                    reply = (prefix + entry.task_id, entry.value, entry.wait)
                    if is_final:
                        reply = (entry.task_id, former, NO_WAIT)
                    notifications.setdefault(entry.address, []).append(reply)
            pipe.execute()
        self._publish(notifications)

    def _is_final(self, stored: Any) -> bool:
        """Return whether a stored result is not to be overwritten, as Celery's backend reads it."""
        if not stored:
            return False
        return self._backend.decode_result(stored)["status"] in _FINAL

    def _publish(self, notifications: _Notifications) -> None:
        """Try to notify clients; without a notification they find their results by polling."""
        try:
            with self._backend.client.pipeline(transaction=False) as pipe:
                for (channel, batch_facts, _), entries in notifications.items():
                    replies = [(task_id, value) for task_id, value, _ in entries]
                    waits = [wait for *_, wait in entries]
                    for payload in write_replies(replies, batch_facts, waits):
                        pipe.publish(channel, payload)
                pipe.execute()
        except Exception as error:  # noqa: BLE001 (the results are stored)
            self._warn_unnotified(error)

    @staticmethod
    def _warn_unnotified(reason: object) -> None:
        level = logging.DEBUG if RedisStore._has_warned else logging.WARNING
        RedisStore._has_warned = True
        logger.log(
            level,
            "Could not notify a client of its results, which it will find by polling: %s",
            reason,
        )


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


def _raise_temporary(error: ResponseError) -> None:
    """Raise a temporary error as such; Redis before 7 wraps it when it occurs in a script."""
    if isinstance(error, (OutOfMemoryError, ReadOnlyError)):
        raise error
    if is_full(error):
        raise OutOfMemoryError(str(error)) from error
    if is_read_only(error):
        raise ReadOnlyError(str(error)) from error


def temporary_errors(backend: Any) -> tuple[type[Exception], ...]:
    """Return the errors after which storing may succeed later: no connection, memory or master."""
    connection = getattr(backend, "connection_errors", (ConnectionError,))
    return (*connection, OutOfMemoryError, ReadOnlyError)
