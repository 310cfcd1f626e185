"""
A message as Celery would send it, made from a template.

Celery makes one message of each kind, with placeholders for the fields that differ from call to
call; filled in, it is byte for byte what Celery would send.  So only Celery knows what a message
looks like.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from json.encoder import encode_basestring_ascii as quoted
from os import urandom
from types import SimpleNamespace
from typing import Any, NamedTuple

from celery import Celery
from celery.utils.functional import noop
from celery.utils.saferepr import saferepr
from celery.utils.time import isoparse, maybe_make_aware
from kombu import messaging
from kombu.serialization import dumps as serialized
from kombu.utils.json import JSONEncoder, dumps

from celery_batch.client.publish.buffer import PreparedMessage
from celery_batch.compat.fast_paths import FastPaths
from celery_batch.compat.kombu import complete_for_list, encodes_json, queue_expires
from celery_batch.compat.older_celery import (
    add_seconds_to_datetime,
    repr_levels,
    subtract_datetimes,
)
from celery_batch.config import SettingsSnapshot, max_queue_of
from celery_batch.payloads.app_payloads import AppPayloads
from celery_batch.protocol import READS_PAYLOADS, REPLY_HEADER, SENT
from celery_batch.serialization.arrays import describe
from celery_batch.serialization.typed_json import StoredValue, encode_json

__all__ = [
    "FIELDS",
    "PLACEHOLDER",
    "Fields",
    "Form",
    "Probe",
    "PublishSettings",
    "RedisProbe",
    "RedisProducer",
    "Template",
    "expiry_of",
    "fast_repr",
    "limit_connecting",
    "new_id",
    "put_placeholders",
    "send_probe",
    "sent_now",
    "serialized_body",
]

#: What placeholders begin with; a random text, so that no value contains it.
PLACEHOLDER = f"blank-{os.urandom(12).hex()}-"

#: Seconds: Celery computes what a message says of its expiry, and we replace it.
_ANY_EXPIRY = 60

#: Arguments of `Celery.send_task` that become placeholders.
_OPTION_FIELDS = (
    "task_id",
    "root_id",
    "parent_id",
    "group_id",
    "group_index",
    "reply_to",
    "shadow",
)

#: All fields for which a message has placeholders; the last ones are put in once it is made.
FIELDS = (
    *_OPTION_FIELDS,
    "argsrepr",
    "kwargsrepr",
    "reply",
    "sent",
    "headers",
    "expires",
    "expiration",
)

#: Celery's message protocol that has headers.
_WITH_HEADERS = 2

_Producer: Any = messaging.Producer

#: The values of a call's fields: texts and numbers, and as ``headers`` a dict of them.
Fields = dict[str, Any]


class Form(NamedTuple):
    """Which parts a message has that others of its task leave out."""

    reply: bool  # the header that names our reply channel
    expires: bool
    headers: bool  # headers of the caller's own
    sent: bool = False  # the header that says when it was sent


class PublishSettings(SettingsSnapshot):
    """What an app's settings say of its calls, looked up once: that costs more than a call."""

    def __init__(self, app: Any) -> None:
        conf = app.conf
        super().__init__(conf)
        self.is_stock = not conf.get("batch_bulk", True)
        #: Whether messages are made from templates, and many written at once.
        self.bulk = FastPaths.of(app).is_on("publish")
        self.is_eager = bool(conf.task_always_eager)
        self.max_queue = max_queue_of(app)
        self.is_plain = self.bulk and not (self.is_eager or conf.task_send_sent_event)
        self.inherits_priority = conf.task_inherit_parent_priority
        self.has_headers = conf.task_protocol == _WITH_HEADERS
        #: Whether its times are UTC, by Celery's own clock.
        self.is_utc = app.uses_utc_timezone() and getattr(app.now, "__func__", None) is Celery.now
        self.repr_levels = repr_levels(conf)
        self.args_limit = app.amqp.argsrepr_maxsize
        self.kwargs_limit = app.amqp.kwargsrepr_maxsize


#: Each hexadecimal digit with the two bits that say which kind of UUID it is.
_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}


def new_id() -> str:
    """Return a random UUID as Celery's are, at a third of the cost."""
    digits = urandom(16).hex()
    return (
        f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}"
        f"-{_VARIANT[digits[16]]}{digits[17:20]}-{digits[20:]}"
    )


#: Characters from which on a text may have to be cut.
_LONG = 1000

#: Characters around a list's values, and some to spare.
_BRACKETS = 8

#: Characters of a number in a list, with what separates it from the next.
_SHORTEST = 3

#: Types whose `saferepr` is their `str`.
_NUMBERS = frozenset((int, float, bool, type(None)))


def fast_repr(value: Any, limit: int | None, levels: int) -> str:
    """Return what Celery's `saferepr` returns, in an eighth of the time for plain values."""
    kind = type(value)
    if kind is tuple or kind is list:
        parts = [
            _list_repr(each, limit) if type(each) is list and levels != 1 else _plain_repr(each)
            for each in value
        ]
        if None not in parts:
            inside = ", ".join(parts)  # type: ignore[arg-type]
            if limit is None or len(inside) < limit - _BRACKETS:
                if kind is list:
                    return f"[{inside}]"
                return f"({inside},)" if len(parts) == 1 else f"({inside})"
    elif value == {} and kind is dict:
        return "{}"
    return saferepr(describe(value), limit, levels)  # type: ignore[no-any-return]


def _list_repr(values: list[Any], limit: int | None) -> str | None:
    """Return the text of a list of plain values, as in chunks; None if only Celery can make it."""
    if limit is not None and len(values) * _SHORTEST > limit:
        return None  # it will be cut
    if _NUMBERS.issuperset(map(type, values)):
        return repr(values)
    parts, size = [], 0
    for each in values:
        part = _plain_repr(each)
        size += len(part or "")
        if part is None or (limit is not None and size > limit):
            return None
        parts.append(part)
    return f"[{', '.join(parts)}]"


def _plain_repr(value: Any) -> str | None:
    kind = type(value)
    if kind is str:
        return "'" + value.replace("'", "\\'") + "'" if len(value) < _LONG else None
    if kind is StoredValue:
        return repr(value)
    return str(value) if kind in _NUMBERS else None


#: Seconds: RabbitMQ counts milliseconds in 32 bits, and closes the channel for a larger number.
_LONGEST_EXPIRY = 2**32 / 1000 - 1


def expiry_of(app: Any, settings: PublishSettings, expires: Any) -> Fields | None:
    """Return the fields of a message's expiry; None if that is left to Celery."""
    if expires is None:
        return {}
    if type(expires) in (int, float):
        at, left = None, expires
    elif type(expires) is datetime and expires.tzinfo is UTC and settings.is_utc:
        at, left = expires.isoformat(), (expires - datetime.now(UTC)).total_seconds()
    else:
        try:
            time = isoparse(expires) if type(expires) is str else expires
            at = expires if type(expires) is str else expires.isoformat()
            left = subtract_datetimes(time, app.now()).total_seconds()
        except Exception:  # noqa: BLE001 (Celery meets it as well, and raises its own error)
            return None
    if not 0 <= left <= _LONGEST_EXPIRY:
        return None
    return {"expires": at or _after(app, settings, left), "expiration": str(int(left * 1000))}


def sent_now() -> int:
    """Return the value of the header that says when a message was sent."""
    return int(time.time() * 1000)


def _after(app: Any, settings: PublishSettings, seconds: float) -> str:
    if settings.is_utc:  # what follows returns the same
        return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()
    at = maybe_make_aware(add_seconds_to_datetime(app.now(), seconds), tz=app.timezone)
    return at.isoformat()  # type: ignore[no-any-return]


def serialized_body(body: tuple[Any, ...], serializer: str) -> Any:
    """Return a body serialized as kombu does it, with one encoder for all where it is JSON."""
    if encodes_json(serializer):
        try:
            return encode_json(body)
        except Exception:  # noqa: BLE001, S110 (kombu meets it as well, and raises its own error)
            pass
    return serialized(body, serializer=serializer)[2]


class Template(NamedTuple):
    """What is the same in all messages of one kind to Redis."""

    key: str  # the list that they go to, with its prefix
    text: str  # the message, with placeholders for %-formatting
    reserved: frozenset[str]  # names of headers that the caller's own must not have
    embed: dict[str, Any]  # the third part of a body: callbacks and what comes after
    serializer: str  # the name of the body's serializer
    codec: Any  # makes a serialized body fit for JSON

    def encode(self, values: Fields) -> dict[Any, Any] | None:
        """Return fields as `render` fills them in; None if a value has no place there."""
        headers = values.get("headers")
        if headers and not self.reserved.isdisjoint(headers):
            return None
        try:
            return {
                name: quoted(value) if type(value) is str else _json_text(value)
                for name, value in values.items()
            }
        except Exception:  # noqa: BLE001 (Celery meets it as well, and raises its own error)
            return None

    def render(self, body: tuple[Any, ...], texts: dict[Any, Any]) -> PreparedMessage:
        """Return the message of a call, given all its encoded fields."""
        payload = serialized_body(body, self.serializer)
        texts["tag"] = f'"{new_id()}"'
        texts["body"] = f'"{self.codec.encode(payload)}"'
        return PreparedMessage(self.key, self.text % texts)


_encode = JSONEncoder().encode


def _json_text(value: Any) -> str:
    if type(value) is dict:  # some headers among others
        return _encode(value)[1:-1]
    return "null" if value is None else str(value)


def limit_connecting(app: Any, connection: Any) -> None:
    """Have a connection give up as publishing does, not after kombu's longer time."""
    if not connection.connected:
        conf = app.conf
        retries = conf.task_publish_retry_policy if conf.task_publish_retry else {"max_retries": 0}
        connection.transport_options.update(retries)  # as Celery's publishing does


class _SameChannel(_Producer):  # type: ignore[misc]
    """A producer on another one's channel."""

    def __init__(self, producer: Any) -> None:
        super().__init__(producer.channel, auto_declare=False)
        self.serializer = producer.serializer


class RedisProducer(_SameChannel):
    """A producer that keeps the message that it would push to a list, and sends all others."""

    def __init__(self, producer: Any, before_others: Callable[[], object] = noop) -> None:
        super().__init__(producer)
        #: Called before it sends what is not simply put into one list.
        self._before_others = before_others

    #: Whether it sends what is not simply put into one list, as kombu does.
    sends_others = True

    #: The list, with its prefix, and the message in the form in which kombu would push it.
    captured: tuple[str, dict[str, Any]] | None = None

    def _publish(self, body: Any, *details: Any) -> None:
        priority, content_type, encoding, headers, properties, queue = details[:6]
        exchange, declare = details[8:10]
        channel = self.channel
        for entity in declare:
            self.maybe_declare(entity)
        if exchange or queue_expires(channel, queue):
            if self.sends_others:
                self._before_others()
                super()._publish(body, *details)
            return
        message = channel.prepare_message(
            body, priority, content_type, encoding, headers, properties
        )
        self.captured = complete_for_list(channel, message, exchange, queue), message


class Probe(_SameChannel):
    """A producer that keeps a message, to make a template of it, and sends nothing."""

    sends_others = False

    def publish(self, body: Any, serializer: Any = None, **options: Any) -> Any:
        """Note the body's third part and its serializer, and make the message."""
        self.embed = body[2]
        self.body_serializer = serializer or self.serializer or "json"
        return super().publish(body, serializer=serializer, **{**options, "retry": False})


class RedisProbe(Probe, RedisProducer):
    """A probe for Redis."""

    def template(self, form: Form) -> Template | None:
        """Return a template of the message; None if it has no such form."""
        if self.captured is None:
            return None
        key, message = self.captured
        headers, properties = message["headers"], message["properties"]
        codec = self.channel.codecs.get(properties["body_encoding"])
        if codec is None or headers.get("compression"):
            return None
        message["body"] = PLACEHOLDER + "body"
        properties["delivery_tag"] = PLACEHOLDER + "tag"
        put_placeholders(headers, properties, form)
        text = dumps(message).replace("%", "%%")
        text = text.replace(f'"{PLACEHOLDER}headers": null', "%(headers)s")
        for field in (*FIELDS, "body", "tag"):
            text = text.replace(f'"{PLACEHOLDER}{field}"', f"%({field})s")
        if PLACEHOLDER in text:
            return None
        reserved = frozenset(headers)
        return Template(key, text, reserved, self.embed, self.body_serializer, codec)


def send_probe(task: Any, options: dict[str, Any], probe: Probe, form: Form) -> None:
    """Have Celery send a call whose options are placeholders."""
    headers: dict[str, str | bool | None] = {PLACEHOLDER + "headers": None} if form.headers else {}
    if form.sent:
        headers[SENT] = PLACEHOLDER + "sent"
    if form.reply:
        headers[REPLY_HEADER] = PLACEHOLDER + "reply"
        if AppPayloads.of(task.app).store is not None:
            headers[READS_PAYLOADS] = True
    options = {**options, "headers": headers, "expires": _ANY_EXPIRY if form.expires else None}
    task.app.send_task(
        task.name,
        (),
        {},
        producer=probe,
        task_type=task,
        result_cls=lambda _task_id: SimpleNamespace(ignored=True),
        add_to_parent=False,
        **{option: PLACEHOLDER + option for option in _OPTION_FIELDS},
        **options,
    )


def put_placeholders(headers: dict[str, Any], properties: dict[str, Any], form: Form) -> None:
    """Replace what Celery has computed for itself in a probe's message."""
    for field in ("argsrepr", "kwargsrepr"):
        headers[field] = PLACEHOLDER + field
    if form.expires:
        headers["expires"] = PLACEHOLDER + "expires"
        properties["expiration"] = PLACEHOLDER + "expiration"
