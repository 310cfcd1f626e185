"""
Refuses messages: logs why, stores a failure for the caller, and writes a dead letter.

A message is rejected after both are written: if this worker dies before, another one does it.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from celery import signals
from celery.app.task import Context
from celery.utils.functional import noop
from celery.worker.state import task_ready
from kombu.exceptions import ContentDisallowed

from celery_batch.errors import MessageRefused, MessageTooLarge
from celery_batch.protocol import REPLY_HEADER
from celery_batch.worker.intake.background_thread import BackgroundThread
from celery_batch.worker.intake.dead_letters import DeadLetters
from celery_batch.worker.intake.message_format import Malformed, TooLarge, is_name

__all__ = ["LONGEST_REASON", "Refusals", "fields_at_end", "reason_of"]

logger = logging.getLogger(__name__)

#: Most characters of a reason.
LONGEST_REASON = 200

#: Bytes of a refused message, and characters of its task and id, that the log shows.
_SHOWN, _LONGEST_SHOWN = 120, 100

#: The fields of what names none.
_NONE: Mapping[str, Any] = MappingProxyType({})

#: Headers and properties by which the caller of a refused message is notified.
_OF_CALLER = ("id", "reply_to", "correlation_id", REPLY_HEADER)

#: Bytes at the end of a message that is too large, in which its headers and properties are
#: searched: more than they may have.
_TAIL = 320 << 10

_HEADERS = re.compile(r'"headers":')


def reason_of(error: Exception) -> str:
    """Return what is wrong with a message, as a short line."""
    if isinstance(error, Malformed):
        return str(error)[:LONGEST_REASON]
    words = f"{type(error).__name__}: {str(error)[:LONGEST_REASON]}"
    if isinstance(error, ContentDisallowed):
        words += "; if all senders are trusted, add it to the worker's accept_content"
    return ascii(words)[:LONGEST_REASON]


def fields_at_end(raw: bytes) -> dict[str, Any]:
    """Return properties and headers of a message too large to decode: they follow its body."""
    tail = raw[-_TAIL:].decode(errors="replace")
    found = _HEADERS.search(tail)
    try:
        envelope, _ = json.JSONDecoder().raw_decode("{" + tail[found.start() :] if found else "{}")
    except (ValueError, RecursionError):
        return {}
    parts = [envelope.get(name) for name in ("properties", "headers")]
    return {name: part[name] for part in parts if isinstance(part, dict) for name in part}


class Refusals:
    """Refuses messages of one consumer."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        #: The channel of the present connection.
        self.channel: Any = None
        #: How many messages were refused.
        self.count = 0
        self._background = BackgroundThread()
        self._dead_letters = DeadLetters(consumer)

    def close(self) -> None:
        """Store the last refusals; the worker is shutting down."""
        self._background.close()
        self._dead_letters.close()

    def refuse(self, message: Any, error: Exception) -> None:
        """Refuse a message of kombu's."""
        body, headers = message.body, message.headers
        body = body if isinstance(body, bytes) else str(body).encode(errors="replace")
        write = self._log(body, error, headers, partial(self._reject, message))
        self._store({**message.properties, **headers}, error, write)
        signals.task_rejected.send(sender=self._consumer, message=message, exc=error)

    def refuse_read(self, request: Any, reason: str) -> None:
        """Refuse a message whose body a pool process decoded and found malformed."""
        task_ready(request)
        self.refuse(request.message, Malformed(reason))

    def refuse_raw(
        self,
        raw: bytes,
        error: Exception,
        then: Callable[[], object] = noop,
        fields: Mapping[str, Any] = _NONE,
    ) -> None:
        """Refuse what is no message, and so can be neither acknowledged nor rejected."""
        self._store(fields, error, noop)
        self._log(raw, error, fields, then)()

    def _log(
        self, raw: bytes, error: Exception, fields: Mapping[str, Any], then: Callable[[], object]
    ) -> Callable[[], None]:
        """Log in one line what is refused; return what writes its dead letter, and calls `then`."""
        self.count += 1
        reason, named = reason_of(error), {name: fields.get(name) for name in ("id", "task")}
        about = {k: text[:LONGEST_REASON] for k, text in named.items() if isinstance(text, str)}
        shown = "".join(
            f"; its {name} is {about[name][:_LONGEST_SHOWN]!a}"
            for name in ("task", "id")
            if name in about
        )
        logger.error("Refused a message: %s%s; it begins %r", reason, shown, raw[:_SHOWN])
        return partial(self._dead_letters.write_refused, raw, reason, then, **about)

    def _reject(self, message: Any) -> None:
        if not message.acknowledged and message.channel is self.channel:  # else it comes again
            message.reject_log_error(logger, self._consumer.connection_errors)

    def _store(
        self, fields: Mapping[str, Any], error: Exception, then: Callable[[], object]
    ) -> None:
        """Store a failure for the caller, if the message names a task of ours and a result."""
        name = fields.get("task")
        task = self._consumer.app.tasks.get(name) if isinstance(name, str) else None
        if task is None or not is_name(fields.get("id")):
            then()
            return
        store = partial(_store_refusal, task, fields, error)
        self._background.submit(store, partial(self._consumer.call_soon, then))


def _store_refusal(task: Any, fields: Mapping[str, Any], error: Exception) -> None:
    """Store a failure for the caller of a refused message, if the result backend can."""
    refusal: MessageRefused = MessageRefused(reason_of(error))
    if isinstance(error, TooLarge):
        refusal = MessageTooLarge(f"{task.name}: {reason_of(error)}")
    named = {name: fields[name] for name in _OF_CALLER if is_name(fields.get(name))}
    try:
        task.backend.mark_as_failure(fields["id"], refusal, request=Context(**named))
    except Exception as failure:  # noqa: BLE001 (the worker goes on)
        logger.warning("Could not store that a message was refused: %.200r", failure)
