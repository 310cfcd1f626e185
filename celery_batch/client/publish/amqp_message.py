"""
A message to RabbitMQ, made from a template.

As for Redis, but what goes over the wire is not text: tables and short texts begin with
their lengths.  Filled in, it is byte for byte what py-amqp would write.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from struct import pack
from typing import Any, NamedTuple, Self

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


class AmqpMessage(PreparedMessage):
    """A message on its way to RabbitMQ; `header` goes before its body, both are encoded."""

    __slots__ = ("body", "header", "template")

    def __init__(self, template: AmqpTemplate, header: bytes, body: bytes) -> None:
        super().__init__("", body)
        self.template, self.header, self.body = template, header, body


class _Blanks(NamedTuple):
    """Bytes with placeholders: what comes before the first, and each with what follows it."""

    first: bytes
    rest: list[tuple[str, bytes]]

    @classmethod
    def parse(cls, data: bytes, encode: Callable[[Any], bytes]) -> Self | None:
        """Find the placeholders in encoded bytes; None if one is where it cannot be filled."""
        names = {encode(PLACEHOLDER + name): name for name in FIELDS}
        names[_short(PLACEHOLDER + "headers") + _item(None)] = "headers"
        first, *rest = re.split(b"(" + b"|".join(map(re.escape, names)) + b")", data)
        if PLACEHOLDER.encode() in b"".join((first, *rest[1::2])):
            return None
        return cls(first, list(zip([names[each] for each in rest[::2]], rest[1::2], strict=True)))

    def bind(self, values: Fields, encode: Callable[[Any], bytes]) -> _Blanks:
        """Return the same with some placeholders filled in."""
        first, rest = self.first, []
        for name, after in self.rest:
            if name not in values:
                rest.append((name, after))
            elif rest:
                last, before = rest[-1]
                rest[-1] = (last, before + encode(values[name]) + after)
            else:
                first += encode(values[name]) + after
        return _Blanks(first, rest)

    def fill(self, values: Fields, encode: Callable[[Any], bytes]) -> bytes:
        """Return the bytes with all placeholders filled in."""
        parts = [self.first]
        for name, after in self.rest:
            parts += (encode(values[name]), after)
        return b"".join(parts)


class AmqpTemplate(NamedTuple):
    """What is the same in all messages of one kind to RabbitMQ."""

    #: The method frame: where they go, as py-amqp writes it.
    method: bytes
    #: What has to be declared before.
    declare: tuple[Any, ...]
    #: The properties before the headers, encoded.
    before: bytes
    headers: _Blanks
    #: The properties that follow the headers.
    after: _Blanks
    #: Names of headers that the caller's own must not have.
    reserved: frozenset[str]
    #: The third part of a body: callbacks and what comes after.
    embed: dict[str, Any]
    #: The name of the body's serializer.
    serializer: str
    #: Of the body's text.
    encoding: str

    def bind(self, values: Fields) -> AmqpTemplate | None:
        """Return the template with some fields filled in; None if a value has no place there."""
        if not self._has_place_for({name: "" for name, _ in self.after.rest} | values):
            return None
        try:
            headers = self.headers.bind(values, _item)
        except Exception:  # noqa: BLE001 (Celery meets it as well, and raises its own error)
            return None
        return self._replace(headers=headers, after=self.after.bind(values, _short))

    def render(self, body: tuple[Any, ...], values: Fields) -> PreparedMessage | None:
        """Return the message of a call; None if a value has no place in it."""
        if not self._has_place_for(values):
            return None
        payload = serialized_body(body, self.serializer)
        text = payload.encode(self.encoding) if isinstance(payload, str) else payload
        try:
            table = self.headers.fill(values, _item)
        except Exception:  # noqa: BLE001 (Celery meets it as well, and raises its own error)
            return None
        head = pack(">HHQ", _BASIC, 0, len(text)) + self.before + pack(">I", len(table))
        return AmqpMessage(self, head + table + self.after.fill(values, _short), text)

    def _has_place_for(self, values: Fields) -> bool:
        headers = values.get("headers")
        if headers and not self.reserved.isdisjoint(headers):
            return False
        return all(_is_short(values[name]) for name, _ in self.after.rest)


class AmqpProbe(Probe):
    """A probe for RabbitMQ."""

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
        before, found, after = message._serialize_properties().partition(table)  # noqa: SLF001
        headers, rest = _Blanks.parse(table[4:], _item), _Blanks.parse(after, _short)
        fixed = before + self.destination
        if not found or headers is None or rest is None or PLACEHOLDER.encode() in fixed:
            return None
        return AmqpTemplate(
            pack(">HH", _BASIC, _PUBLISH) + self.destination,
            self.declare,
            before,
            headers,
            rest,
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


def _is_short(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_SHORT


def _short(value: Any) -> bytes:
    text = value.encode("utf-8", "surrogatepass")
    return pack("B", len(text)) + bytes(text)
