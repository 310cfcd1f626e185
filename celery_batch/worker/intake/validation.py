"""Validates messages before kombu and Celery decode them.

Kombu decompresses a message as soon as it arrives, into whatever size it claims:
a few kilobytes can become many gigabytes.

In stock kombu and Celery a malformed message raises an error out of the event
loop, and the worker stops or restarts.  Here it alone is refused: one line in
the log, a failure for its caller where one can be stored, a dead letter where a
queue for them is configured, and the worker goes on.

Rule 1: a message of a batch task that is too large is refused before its body is decoded,
        and so is one that names no task in its headers.
Rule 2: messages of ordinary tasks are Celery's, whatever their size; only those are refused that
        would stop the worker, or whose compressed body expands beyond the limit.
Rule 3: an error of the connection is not the message's, and is passed on.
Rule 4: a large body of a batch task is decoded in the pool process, beside the event loop;
        the process reports what is wrong with it, and it is refused here.
"""

from __future__ import annotations

import bz2
import logging
import lzma
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from amqp import serialization
from celery.utils.functional import noop
from celery.worker.state import requests
from kombu import compression
from kombu.exceptions import DecodeError
from kombu.transport import virtual
from kombu.utils.json import dumps

from celery_batch.compat.kombu import wrap_delivery
from celery_batch.config import Settings
from celery_batch.serialization.decoding import (
    OnceDecoded,
    decode_envelope,
    decode_envelopes,
    leave_undecoded,
    payload_of,
)
from celery_batch.task import BatchTask
from celery_batch.worker.context import WorkerContext
from celery_batch.worker.intake.message_format import (
    Malformed,
    TooLarge,
    check_content,
    check_envelope,
    check_headers,
    check_payload,
    check_size,
    check_vital,
    is_flat,
    is_small,
)
from celery_batch.worker.intake.refusals import Refusals, fields_at_end

__all__ = ["MessageValidator", "limit_decompression"]

logger = logging.getLogger(__name__)

#: What helps against a message that is too large.
_WAY_OUT = "raise it for the workers, or send less, such as a reference to the data"

#: Bytes that xz may allocate for its dictionary; its highest preset takes 65 MiB.
_XZ_MEMORY = 256 << 20

#: The consumer's own methods, which handle the messages of ordinary tasks.
_STOCK = ("create_task_handler", "on_decode_error", "on_invalid_task")

#: The content type of an AMQP message whose properties could not be read: no task accepts it.
UNREADABLE = "application/x-unreadable-properties"


def check_deliveries(channel: Any, refuse: Callable[[bytes, Exception], None]) -> None:
    """Check what a transport gives to its consumers: tasks, remote control, gossip."""
    codecs = channel.codecs

    def checked(deliver: Callable[[Any, str], None]) -> Callable[[Any, str], None]:
        def check_and_deliver(envelope: Any, queue: str) -> None:
            try:
                check_envelope(envelope, codecs)
            except Malformed as error:
                refuse(_encode(envelope), error)
                return
            deliver(envelope, queue)

        return check_and_deliver

    wrap_delivery(channel.connection, checked)


def check_blocking_pops(client: Any, read: Callable[[bytes], Any]) -> None:
    """Check what kombu's BRPOP returns, before kombu decodes it; `read` may return None."""
    parse = client.parse_response

    def parse_response(connection: Any, command_name: str, **options: Any) -> Any:
        found = parse(connection, command_name, **options)
        if command_name == "BRPOP" and found and read(found[1]) is None:
            return None  # as if no message had come
        return found

    client.parse_response = parse_response


def accept_unreadable_properties() -> None:
    """Let py-amqp go on after properties that it cannot decode, such as names that are no UTF-8."""
    # It would raise in the middle of its connection, and the next worker would get the message.
    for class_id, decode in serialization.PROPERTY_CLASSES.items():
        if not isinstance(decode, partial):
            serialization.PROPERTY_CLASSES[class_id] = partial(_properties, decode)


def _properties(decode: Callable[..., Any], buf: Any, offset: int) -> tuple[dict[str, Any], int]:
    """Decode properties; in place of unreadable ones return some that no task accepts."""
    try:
        found: tuple[dict[str, Any], int] = decode(buf, offset)
    except Exception:  # noqa: BLE001 (a decoder may raise anything)
        return {"content_type": UNREADABLE, "application_headers": {}}, offset
    return found


def _encode(envelope: Any) -> bytes:
    try:
        return str(dumps(envelope)).encode()
    except (TypeError, ValueError, RecursionError):
        return b""


class _TooLarge(TooLarge, DecodeError):
    """A body expands beyond the limit."""


def _decompress(begin: Callable[[], Any], limit: int, data: bytes) -> bytes:
    """Decompress a body for kombu, up to a size."""
    stream = begin()
    found = stream.decompress(data, limit + 1)
    if len(found) > limit:
        raise _TooLarge(
            f"its body is larger than {limit} bytes when decompressed, and batch_max_message_size"
            f" allows no more: {_WAY_OUT}"
        )
    if not stream.eof:
        raise DecodeError("its compressed body is cut short")
    return bytes(found)


def limit_decompression(limit: int | None) -> None:
    """Let kombu decompress no message beyond so many bytes, in this process; None for any."""
    if limit is None:
        return
    for content_type, stock, begin in _streams():
        encode, _ = compression.get_encoder(content_type)
        decode = compression.get_decoder(content_type)
        is_ours = getattr(decode, "func", None) is _decompress
        if decode is stock or is_ours:  # else it is the user's own
            compression.register(encode, partial(_decompress, begin, limit), content_type)


def _streams() -> list[tuple[str, Any, Callable[[], Any]]]:
    found: list[tuple[str, Any, Callable[[], Any]]] = [
        ("application/x-gzip", zlib.decompress, zlib.decompressobj),
        ("application/x-bz2", bz2.decompress, bz2.BZ2Decompressor),
        (
            "application/x-lzma",
            lzma.decompress,
            lambda: lzma.LZMADecompressor(memlimit=_XZ_MEMORY),
        ),
    ]
    zstd = getattr(compression, "zstd", None)
    if zstd is not None:
        found.append(("application/zstd", zstd.decompress, zstd.ZstdDecompressor))
    return found


class MessageValidator:
    """Checks each message before kombu and Celery rely on it."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._app = consumer.app
        self._tasks = consumer.app.tasks
        self._limit: int | None = None
        #: Whether the limit is also for what names no batch task.
        self._limits_all = False
        self._channel: Any = None
        self.refusals = Refusals(consumer)
        self._stock = {name: getattr(consumer, name) for name in _STOCK}

    def open(self) -> None:
        """Check the messages of a new connection."""
        consumer = self._consumer
        self._limit = Settings.of(self._app).max_message_size
        if WorkerContext.of(consumer.controller).tasks:
            self.limit_all()
        consumer.create_task_handler = self._guarded_handler
        consumer.on_decode_error = partial(self._on_error, "on_decode_error")
        consumer.on_invalid_task = partial(self._on_error, "on_invalid_task")
        consumer.task_consumer.on_decode_error = consumer.on_decode_error
        channel = self._channel = self.refusals.channel = consumer.task_consumer.channel
        if isinstance(channel, virtual.Channel):
            once: Any = OnceDecoded(channel.codecs["base64"])
            channel.codecs = {**channel.codecs, "base64": once}
            check_deliveries(channel, self.refusals.refuse_raw)
        driver = consumer.connection.transport.driver_type
        if driver == "redis":
            check_blocking_pops(channel.client, self.read)
        elif driver == "amqp":
            accept_unreadable_properties()

    def limit_all(self) -> None:
        """Limit what names no task, and all decompression, once a batch task is served."""
        self._limits_all = True
        limit_decompression(self._limit)

    def decode_many(self, raws: Sequence[bytes]) -> list[Any]:
        """Return messages from Redis lists decoded, for `read`; None where that does it."""
        return decode_envelopes(raws, self._limit if self._limits_all else None)

    def read(self, raw: bytes, then: Callable[[], object] = noop, decoded: Any = None) -> Any:
        """Return a Redis message decoded; None, and later a call of `then`, if it is refused."""
        if self._limits_all and self._limit is not None and len(raw) > self._limit:
            fields = fields_at_end(raw)
            if not self._is_celerys(fields):
                self.refusals.refuse_raw(raw, self._excess("it", len(raw)), then, fields)
                return None
        try:
            envelope = decode_envelope(raw) if decoded is None else decoded
            check_envelope(envelope, self._channel.codecs, small=is_small(raw))
        except Exception as error:  # noqa: BLE001 (a decoder may raise anything)
            self.refusals.refuse_raw(raw, error, then)
            return None
        return envelope

    def _guarded_handler(self) -> Callable[[Any], Any]:
        handle = self._stock["create_task_handler"]()

        def on_task_received(message: Any) -> Any:
            try:
                admit = self._check(message)
                return (admit is not None and admit(message)) or handle(message)
            except Exception as error:
                if self._is_not_of(message, error):
                    raise
                self.refusals.refuse(message, error)

        return on_task_received

    def _check(self, message: Any) -> Callable[[Any], bool] | None:
        """Raise what is wrong with a message that Celery does not report; return the fast path."""
        if self._limits_all:
            self._check_length(message)
        check_content(message)
        if not isinstance(self._channel, virtual.Channel):  # there it has been done
            headers, properties = message.headers, message.properties
            if not (is_flat(headers) and is_flat(properties, headers)):
                check_size([headers, properties])
        fields = message.headers
        is_current = "task" in fields
        if not is_current:
            payload = message.payload
            fields = {**payload, **fields} if isinstance(payload, dict) else fields
        task = self._task(fields)
        if isinstance(task, BatchTask):
            self._check_length(message)
            check_headers(fields, message.properties)
            if not (is_current and leave_undecoded(message)):
                check_payload(payload_of(message), is_current=is_current)
            if is_current:
                return getattr(self._consumer.strategies.get(task.name), "admit", None)
        elif task is not None:
            check_vital(fields)
            try:
                payload = message.payload
            except Exception:  # noqa: BLE001 (Celery decodes it again, and reports it)
                return None
            check_payload(payload, is_current=is_current)
        return None

    def _check_length(self, message: Any) -> None:
        size = len(message.body or b"")
        if self._limit is not None and size > self._limit and not self._is_celerys(message.headers):
            raise self._excess("its body", size)

    def _excess(self, what: str, size: int) -> TooLarge:
        return TooLarge(
            f"{what} has {size} bytes, more than batch_max_message_size allows ({self._limit}):"
            f" {_WAY_OUT}"
        )

    def _is_celerys(self, headers: Mapping[str, Any]) -> bool:
        """Return whether headers name a task that is no batch task: one to run, or unknown."""
        name = headers.get("task")
        return isinstance(name, str) and not isinstance(self._tasks.get(name), BatchTask)

    def _task(self, fields: Any) -> Any:
        name = fields.get("task")
        return self._tasks.get(name) if isinstance(name, str) else None

    def _is_not_of(self, message: Any, error: Exception) -> bool:
        """Return whether an error is not the message's: the connection's, or a later one."""
        is_lookup = isinstance(error, LookupError)  # kombu counts KeyError to the connection
        if isinstance(error, self._consumer.connection_errors) and not is_lookup:
            return True
        return any(request.message is message for request in list(requests.values()))

    def _on_error(self, handler: str, *args: Any) -> None:
        """Refuse a message, unless the consumer's own handler is for it."""
        *_, message, error = args
        if self._is_for_celery(message) and not isinstance(error, TooLarge):
            self._stock[handler](*args)
        else:
            self.refusals.refuse(message, error)

    def _is_for_celery(self, message: Any) -> bool:
        """Return whether a message is for an ordinary task, or for the worker itself."""
        task = self._task(message.headers)
        is_ordinary = task is not None and not isinstance(task, BatchTask)
        return is_ordinary or message.channel is not self._channel
