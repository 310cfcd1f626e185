"""Stores and logs why a message is refused."""

from __future__ import annotations

import json
import logging
from typing import Any

from celery.app.task import Context

from celery_batch.errors import MessageRefused, MessageTooLarge
from celery_batch.protocol import REPLY_HEADER
from celery_batch.worker.intake.message_format import Malformed, TooLarge

__all__ = ["LONGEST_REASON", "headers_at_end", "log_refusal", "reason_of", "store_refusal"]

logger = logging.getLogger(__name__)

#: Most characters of a reason.
LONGEST_REASON = 200

#: Bytes of a refused message that the log shows.
_SHOWN = 120

#: Headers and properties by which the caller of a refused message is notified.
_OF_CALLER = ("id", "reply_to", "correlation_id", REPLY_HEADER)

#: Bytes at the end of a message that is too large, in which its headers are searched.
_TAIL = 1 << 16


def store_refusal(task: Any, fields: dict[str, Any], error: Exception) -> None:
    """
    Store a failure for the caller of a refused message, if the result backend can.

    Args:
        task: The batch task.
        fields: The message's headers and properties, which have been checked.
        error: What is wrong with it.
    """
    refusal = MessageTooLarge if isinstance(error, TooLarge) else MessageRefused
    named = {name: fields.get(name) for name in _OF_CALLER}
    try:
        task.backend.mark_as_failure(
            fields["id"], refusal(reason_of(error)), request=Context(**named)
        )
    except Exception as failure:  # noqa: BLE001 (the worker goes on)
        logger.warning("Could not store that a message was refused: %.200r", failure)


def reason_of(error: Exception) -> str:
    """Return what is wrong with a message, as a short line."""
    if isinstance(error, Malformed):
        return str(error)[:LONGEST_REASON]
    return ascii(f"{type(error).__name__}: {str(error)[:LONGEST_REASON]}")[:LONGEST_REASON]


def log_refusal(raw: bytes, reason: str) -> None:
    """Log in one line that a message is refused, and how it begins."""
    logger.error("Refused a message: %s; it begins %r", reason, raw[:_SHOWN])


def headers_at_end(raw: bytes) -> dict[str, Any]:
    """Return the headers of a message too large to decode, which kombu writes after its body."""
    tail = raw[-_TAIL:].decode(errors="replace")
    _, found, rest = tail.partition('"headers": ')
    try:
        headers, _ = json.JSONDecoder().raw_decode(rest if found else "{}")
    except (ValueError, RecursionError):
        return {}
    return headers if isinstance(headers, dict) else {}
