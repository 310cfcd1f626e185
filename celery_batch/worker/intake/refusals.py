"""Stores and logs why a message is refused."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from typing import Any

from celery.app.task import Context
from kombu.exceptions import ContentDisallowed

from celery_batch.errors import MessageRefused, MessageTooLarge
from celery_batch.protocol import REPLY_HEADER
from celery_batch.worker.intake.message_format import Malformed, TooLarge, is_name

__all__ = ["LONGEST_REASON", "fields_at_end", "log_refusal", "reason_of", "store_refusal"]

logger = logging.getLogger(__name__)

#: Most characters of a reason.
LONGEST_REASON = 200

#: Bytes of a refused message, and characters of its task and id, that the log shows.
_SHOWN, _LONGEST_SHOWN = 120, 100

#: Headers and properties by which the caller of a refused message is notified.
_OF_CALLER = ("id", "reply_to", "correlation_id", REPLY_HEADER)

#: Bytes at the end of a message that is too large, in which its headers and properties are
#: searched: more than they may have.
_TAIL = 320 << 10

_HEADERS = re.compile(r'"headers":')


def store_refusal(task: Any, fields: dict[str, Any], error: Exception) -> None:
    """Store a failure for the caller of a refused message, if the result backend can."""
    refusal: MessageRefused = MessageRefused(reason_of(error))
    if isinstance(error, TooLarge):
        refusal = MessageTooLarge(f"{task.name}: {reason_of(error)}")
    named = {name: fields[name] for name in _OF_CALLER if is_name(fields.get(name))}
    try:
        task.backend.mark_as_failure(fields["id"], refusal, request=Context(**named))
    except Exception as failure:  # noqa: BLE001 (the worker goes on)
        logger.warning("Could not store that a message was refused: %.200r", failure)


def reason_of(error: Exception) -> str:
    """Return what is wrong with a message, as a short line."""
    if isinstance(error, Malformed):
        return str(error)[:LONGEST_REASON]
    words = f"{type(error).__name__}: {str(error)[:LONGEST_REASON]}"
    if isinstance(error, ContentDisallowed):
        words += "; if all senders are trusted, add it to the worker's accept_content"
    return ascii(words)[:LONGEST_REASON]


def log_refusal(raw: bytes, reason: str, about: Mapping[str, str]) -> None:
    """Log in one line that a message is refused, what it names, and how it begins."""
    known = [(name, about[name][:_LONGEST_SHOWN]) for name in ("task", "id") if name in about]
    named = "".join(f"; its {name} is {text!a}" for name, text in known)
    logger.error("Refused a message: %s%s; it begins %r", reason, named, raw[:_SHOWN])


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
