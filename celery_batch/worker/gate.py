"""
Nobody gets in who would bring the house down.

In stock kombu and Celery a message that is no message raises out of the event
loop, and the worker stops or starts over.  Here it is refused alone: one line in
the log, a failure for its caller where one can be told, a dead letter where a
queue for them is configured, and the worker goes on.

Rule 1: what is too large is refused before anything of it is decoded.
Rule 2: messages of ordinary tasks are Celery's; only what it would die of is ours.
Rule 3: an error of the connection is no message's fault, and is passed on.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

from celery import signals
from celery.app.task import Context
from celery.worker.state import requests
from kombu.transport import virtual
from kombu.utils.encoding import bytes_to_str

from celery_batch.config import Settings
from celery_batch.errors import MessageRefused, MessageTooLarge
from celery_batch.replies import REPLY_HEADER
from celery_batch.task import BatchTask
from celery_batch.worker.dead_letters import keep_refused
from celery_batch.worker.decoding import decode_json, payload_of
from celery_batch.worker.doors import Deliveries, FirstReads, bear_unreadable_properties
from celery_batch.worker.inflate import limit_decompression
from celery_batch.worker.wellformed import (
    Malformed,
    TooLarge,
    check_content,
    check_envelope,
    check_headers,
    check_payload,
    check_size,
    check_vital,
    is_small,
)

__all__ = ["Gate"]

logger = logging.getLogger(__name__)

#: Bytes of a refused message that the log shows, and characters of the reason.
_SHOWN, _REASON = 120, 200

#: Headers and properties by which the caller of a refused message is told.
_WHO_ASKED = ("id", "reply_to", "correlation_id", REPLY_HEADER)

#: What is put aside of the consumer, for messages that are Celery's.
_STOCK = ("create_task_handler", "on_decode_error", "on_invalid_task")

#: Bytes at the end of a message that is too large, where its headers are looked for.
_TAIL = 1 << 16


class Gate:
    """
    Looks at each message before kombu and Celery rely on it.

    Args:
        consumer: Celery's consumer.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._app = consumer.app
        self._tasks = consumer.app.tasks
        self._limit: int | None = None
        self._channel: Any = None
        self._stock = {name: getattr(consumer, name) for name in _STOCK}

    def open(self) -> None:
        """Stand before the new connection's messages."""
        consumer = self._consumer
        self._limit = Settings.of(self._app).max_message_size
        limit_decompression(self._limit)
        consumer.create_task_handler = self._guarded_handler
        consumer.on_decode_error = self._on_decode_error
        consumer.on_invalid_task = self._on_invalid_task
        consumer.task_consumer.on_decode_error = self._on_decode_error
        channel = self._channel = consumer.task_consumer.channel
        if isinstance(channel, virtual.Channel):
            Deliveries(channel, self._refuse_envelope)
        driver = consumer.connection.transport.driver_type
        if driver == "redis":
            FirstReads(channel.client, self.read)
        elif driver == "amqp":
            bear_unreadable_properties()

    def read(self, raw: bytes) -> Any:
        """
        Return a message from a Redis list decoded, or None if it is refused.

        Args:
            raw: As it lay in the list.
        """
        if self._limit is not None and len(raw) > self._limit:
            excess = TooLarge(f"it has {len(raw)} bytes, more than batch_max_message_size")
            self._tell(_glimpse(raw), excess)
            self._refuse_envelope(raw, str(excess))
            return None
        try:
            envelope = decode_json(bytes_to_str(raw))
            check_envelope(envelope, self._channel.codecs, small=is_small(raw))
        except Exception as error:  # noqa: BLE001 (whatever a decoder does with garbage)
            self._refuse_envelope(raw, _reason(error))
            return None
        return envelope

    def _refuse_envelope(self, raw: bytes, reason: str) -> None:
        """Let go of what is no message, and so can be neither acknowledged nor rejected."""
        _log(raw, reason)
        keep_refused(self._app, raw, reason)

    def _guarded_handler(self) -> Callable[[Any], Any]:
        handle = self._stock["create_task_handler"]()

        def on_task_received(message: Any) -> Any:
            try:
                admit = self._check(message)
                return (admit is not None and admit(message)) or handle(message)
            except Exception as error:
                if self._is_not_of(message, error):
                    raise
                self._refuse(message, error)

        return on_task_received

    def _check(self, message: Any) -> Callable[[Any], bool] | None:
        """
        Raise what is wrong with a message, other than what Celery itself says of it.

        Returns:
            The short way in, if there is one for its task.
        """
        if self._limit is not None and len(message.body or b"") > self._limit:
            raise TooLarge(
                f"its body has {len(message.body)} bytes, more than batch_max_message_size"
            )
        check_content(message)
        if not isinstance(self._channel, virtual.Channel):  # there it has been done
            check_size([message.headers, message.properties])
        fields = message.headers
        if "task" not in fields:
            payload = message.payload
            fields = {**payload, **fields} if isinstance(payload, dict) else fields
        task = self._task(fields)
        if isinstance(task, BatchTask):
            check_headers(fields, message.properties)
            check_payload(payload_of(message))
            if fields is message.headers:
                return getattr(self._consumer.strategies.get(task.name), "admit", None)
        elif task is not None:
            check_vital(fields)
            self._check_ordinary(message)
        return None

    def _check_ordinary(self, message: Any) -> None:
        try:
            payload = message.payload
        except Exception:  # noqa: BLE001 (Celery decodes it again, and says so in its own way)
            return
        check_payload(payload)

    def _task(self, fields: Any) -> Any:
        name = fields.get("task")
        return self._tasks.get(name) if isinstance(name, str) else None

    def _is_not_of(self, message: Any, error: Exception) -> bool:
        """Say whether an error is not the message's: the connection's, or one from later."""
        is_lookup = isinstance(error, LookupError)  # kombu counts KeyError to the connection
        if isinstance(error, self._consumer.connection_errors) and not is_lookup:
            return True
        return any(request.message is message for request in list(requests.values()))

    def _on_decode_error(self, message: Any, exc: Exception) -> None:
        if self._is_for_celery(message):
            self._stock["on_decode_error"](message, exc)
        else:
            self._refuse(message, exc)

    def _on_invalid_task(self, body: Any, message: Any, exc: Exception) -> None:
        if self._is_for_celery(message):
            self._stock["on_invalid_task"](body, message, exc)
        else:
            self._refuse(message, exc)

    def _is_for_celery(self, message: Any) -> bool:
        """Say whether a message is for an ordinary task, or for the worker itself."""
        task = self._task(message.headers)
        is_ordinary = task is not None and not isinstance(task, BatchTask)
        return is_ordinary or message.channel is not self._channel

    def _refuse(self, message: Any, error: Exception) -> None:
        body, headers = message.body, message.headers
        body = body if isinstance(body, bytes) else str(body).encode(errors="replace")
        reason = _reason(error)
        _log(body, reason)
        self._tell({**message.properties, **headers}, error)
        about = {name: str(headers[name])[:_REASON] for name in ("id", "task") if name in headers}
        keep_refused(self._app, body, reason, **about)
        if not message.acknowledged:
            message.reject_log_error(logger, self._consumer.connection_errors)
        signals.task_rejected.send(sender=self._consumer, message=message, exc=error)

    def _tell(self, fields: dict[str, Any], error: Exception) -> None:
        """Store a failure where somebody may be waiting: the message says who, and for what."""
        task = self._task(fields)
        refusal = MessageTooLarge if isinstance(error, TooLarge) else MessageRefused
        try:
            if isinstance(task, BatchTask):
                check_headers({"id": fields.get("id"), "task": task.name}, fields)
                named = {name: fields.get(name) for name in _WHO_ASKED}
                task.backend.mark_as_failure(
                    fields["id"], refusal(_reason(error)), request=Context(**named)
                )
        except Malformed:
            return
        except Exception as failure:  # noqa: BLE001 (nobody is told; the worker goes on)
            logger.warning("Could not say that a message was refused: %.200r", failure)


def _reason(error: Exception) -> str:
    if isinstance(error, Malformed):
        return str(error)[:_REASON]
    return ascii(f"{type(error).__name__}: {str(error)[:_REASON]}")[:_REASON]


def _log(raw: bytes, reason: str) -> None:
    logger.error("Refused a message: %s; it begins %r", reason, raw[:_SHOWN])


def _glimpse(raw: bytes) -> dict[str, Any]:
    """Return the headers of a message too large to decode, which kombu writes after its body."""
    tail = raw[-_TAIL:].decode(errors="replace")
    _, found, rest = tail.partition('"headers": ')
    try:
        headers, _ = json.JSONDecoder().raw_decode(rest if found else "{}")
    except (ValueError, RecursionError):
        return {}
    return headers if isinstance(headers, dict) else {}
