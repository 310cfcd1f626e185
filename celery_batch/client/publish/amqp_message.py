"""
A message to RabbitMQ, made from a template.

As for Redis, but what goes over the wire is not text: tables and short texts begin with
their lengths.  Filled in, it is byte for byte what py-amqp would write.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from struct import pack
from typing import Any, NamedTuple

from amqp.serialization import dumps

from celery_batch.client.publish.buffer import PreparedMessage
from celery_batch.client.publish.message import (
    FIELDS,
    PLACEHOLDER,
    Fields,
    Form,
    Probe,
    put_placeholders,
    serialized_body,
)
from celery_batch.compat.amqp import serialized_properties

__all__ = ["AmqpMessage", "AmqpProbe", "AmqpTemplate"]

#: AMQP's numbers of the class "basic" and its method "publish".
_BASIC, _PUBLISH = 60, 40

#: The largest number that py-amqp writes in four bytes.
_LARGEST_INT = 2**31 - 1

#: Bytes of a caller's own headers.  Everything but the body has to fit into one frame: RabbitMQ
#: closes the connection for a larger one, and others' messages are on it.
_MOST_HEADERS = 1 << 15

#: Characters of a short text, whatever they are: it has 255 bytes.
_LONGEST_SHORT = 63

#: The keys of fields as items of the headers' table, and as short texts.
_ITEM_KEYS = {name: name.encode() for name in FIELDS}
_SHORT_KEYS = {name: b"short " + name.encode() for name in FIELDS}


class AmqpMessage(PreparedMessage):
    """A message on its way to RabbitMQ; `header` goes before its body, both are encoded."""

    __slots__ = ("body", "header", "template")

    def __init__(self, template: AmqpTemplate, header: bytes, body: bytes) -> None:
        super().__init__("", body)
        self.template, self.header, self.body = template, header, body


class AmqpTemplate(NamedTuple):
    """What is the same in all messages of one kind to RabbitMQ."""

    method: bytes  # the method frame: where they go, as py-amqp writes it
    declare: tuple[Any, ...]  # what has to be declared before
    before: bytes  # the properties before the headers, encoded
    #: The headers, with placeholders for %-formatting; so are the properties that follow them.
    headers: bytes
    after: bytes
    short_fields: tuple[str, ...]  # fields that those properties have
    reserved: frozenset[str]  # names of headers that the caller's own must not have
    embed: dict[str, Any]  # the third part of a body: callbacks and what comes after
    serializer: str  # the name of the body's serializer
    encoding: str  # of the body's text

    def encode(self, values: Fields) -> dict[Any, Any] | None:
        """Return fields as `render` fills them in; None if a value has no place there."""
        headers = values.get("headers")
        if headers and not self.reserved.isdisjoint(headers):
            return None
        try:
            encoded = {_ITEM_KEYS[name]: _item(value) for name, value in values.items()}
        except Exception:  # noqa: BLE001 (Celery meets it as well, and raises its own error)
            return None
        for name in self.short_fields:
            if name in values:
                value = values[name]
                if not isinstance(value, str) or len(value) > _LONGEST_SHORT:
                    return None
                encoded[_SHORT_KEYS[name]] = _short(value)
        return encoded

    def render(self, body: tuple[Any, ...], encoded: dict[Any, Any]) -> PreparedMessage:
        """Return the message of a call, given all its encoded fields."""
        payload = serialized_body(body, self.serializer)
        text = payload.encode(self.encoding) if isinstance(payload, str) else payload
        table = self.headers % encoded
        head = pack(">HHQ", _BASIC, 0, len(text)) + self.before + pack(">I", len(table))
        return AmqpMessage(self, head + table + self.after % encoded, text)


class AmqpProbe(Probe):
    """A probe for RabbitMQ."""

    message: Any = None

    def _publish(self, body: Any, *details: Any) -> None:
        priority, content_type, encoding, headers, properties, key = details[:6]
        mandatory, immediate, exchange, declare = details[6:10]
        for entity in declare:
            self.maybe_declare(entity)
        if headers.get("compression"):
            return
        self.declare = tuple(declare)
        self.destination = dumps("Bssbb", (0, exchange, key, mandatory, immediate))
        self.message = self.channel.prepare_message(
            body, priority, content_type, encoding, headers, properties
        )

    def template(self, form: Form) -> AmqpTemplate | None:
        """Return a template of the message; None if it has no such form."""
        message = self.message
        if message is None:
            return None
        given = message.properties["application_headers"]
        put_placeholders(given, message.properties, form)
        table = dumps("F", [given])
        before, found, after = serialized_properties(message).partition(table)
        headers = _pattern(table[4:], _ITEM_KEYS, _item)
        rest = _pattern(after, _SHORT_KEYS, _short)
        fixed = before + self.destination
        if not found or PLACEHOLDER.encode() in fixed + headers + rest:
            return None
        return AmqpTemplate(
            pack(">HH", _BASIC, _PUBLISH) + self.destination,
            self.declare,
            before,
            headers,
            rest,
            tuple(name for name, key in _SHORT_KEYS.items() if b"%%(%b)b" % key in rest),
            frozenset(given),
            self.embed,
            self.body_serializer,
            message.properties.get("content_encoding") or "utf-8",
        )


def _item(value: Any) -> bytes:
    """Return a value of a table as py-amqp writes it."""
    if value is None:
        return b"V"
    if type(value) is str:
        text = value.encode("utf-8", "surrogatepass")
        return pack(">cI", b"S", len(text)) + text
    if type(value) is dict:  # some headers among others
        table = bytes(dumps("F", [value])[4:])
        if len(table) > _MOST_HEADERS:
            raise ValueError("a frame has no place for these headers")
        return table
    return pack(">ci", b"I", value) if abs(value) <= _LARGEST_INT else pack(">cq", b"L", value)


def _pattern(data: bytes, keys: dict[str, bytes], encode: Callable[[Any], bytes]) -> bytes:
    """Return encoded bytes with their placeholders in the form for %-formatting."""
    blanks = {encode(PLACEHOLDER + name): b"%%(%b)b" % key for name, key in keys.items()}
    blanks[_short(PLACEHOLDER + "headers") + _item(None)] = b"%%(%b)b" % keys["headers"]
    blanks[b"%"] = b"%%"  # the last: a length before a placeholder may look like it
    return re.sub(b"|".join(map(re.escape, blanks)), lambda found: blanks[found[0]], data)


def _short(value: Any) -> bytes:
    text = value.encode("utf-8", "surrogatepass")
    return pack("B", len(text)) + bytes(text)
