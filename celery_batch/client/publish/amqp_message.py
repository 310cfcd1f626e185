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
from kombu import messaging

from celery_batch.client.publish.buffer import PreparedMessage
from celery_batch.client.publish.message import (
    BLANK_OPTIONS,
    MARK,
    PARTS,
    Fields,
    Form,
    mark_parts,
    payload_of,
    teach,
)

__all__ = ["AmqpMessage", "AmqpTemplate"]

_Producer: Any = messaging.Producer

#: AMQP's numbers of the class "basic" and its method "publish".
_BASIC, _PUBLISH = 60, 40

#: The largest number that py-amqp writes in four bytes.
_LARGEST_INT = 2**31 - 1

#: Bytes of a caller's own headers.  All that is no body has to fit into one frame: RabbitMQ
#: closes the connection on who writes a larger one, and others' letters are on it.
_MOST_HEADERS = 1 << 15

#: Characters of a short text, whatever they are: it has 255 bytes.
_LONGEST_SHORT = 63


class AmqpMessage(PreparedMessage):
    """
    A message on its way to RabbitMQ.

    Args:
        template: Its kind, which says where it goes.
        header: What goes before its body, encoded.
        body: Its body, encoded.
    """

    __slots__ = ("body", "header", "template")

    def __init__(self, template: AmqpTemplate, header: bytes, body: bytes) -> None:
        super().__init__("", body)
        self.template, self.header, self.body = template, header, body


class Blanks(NamedTuple):
    """
    Bytes with blanks in them.

    Args:
        first: What comes before the first.
        rest: Of each blank its name, and what follows it.
    """

    first: bytes
    rest: list[tuple[str, bytes]]

    @classmethod
    def cut(cls, data: bytes, encode: Callable[[Any], bytes]) -> Self | None:
        """Find the blanks in encoded bytes; None if one is where it cannot be filled."""
        names = {encode(MARK + name): name for name in (*BLANK_OPTIONS, *PARTS)}
        names[_short(MARK + "headers") + _item(None)] = "headers"
        first, *rest = re.split(b"(" + b"|".join(map(re.escape, names)) + b")", data)
        if MARK.encode() in b"".join((first, *rest[1::2])):
            return None
        return cls(first, list(zip([names[each] for each in rest[::2]], rest[1::2], strict=True)))

    def settle(self, values: Fields, encode: Callable[[Any], bytes]) -> Blanks:
        """Return the same with some blanks filled in."""
        first, rest = self.first, []
        for name, after in self.rest:
            if name not in values:
                rest.append((name, after))
            elif rest:
                last, before = rest[-1]
                rest[-1] = (last, before + encode(values[name]) + after)
            else:
                first += encode(values[name]) + after
        return Blanks(first, rest)

    def fill(self, values: Fields, encode: Callable[[Any], bytes]) -> bytes:
        """Return the bytes with values in their blanks."""
        parts = [self.first]
        for name, after in self.rest:
            parts += (encode(values[name]), after)
        return b"".join(parts)


class AmqpTemplate(NamedTuple):
    """
    What is the same in all messages of one kind.

    Args:
        place: Where they go, as py-amqp writes it.
        declare: What has to be declared before.
        before: The properties before the headers, encoded.
        headers: The headers, encoded, with blanks.
        after: The properties that follow, with blanks.
        taken: Names of headers that are Celery's, and ours.
        embed: The third part of a body: callbacks and what comes after.
        serializer: Name of the body's serializer.
        encoding: Of the body's text.
    """

    place: bytes
    declare: tuple[Any, ...]
    before: bytes
    headers: Blanks
    after: Blanks
    taken: frozenset[str]
    embed: dict[str, Any]
    serializer: str
    encoding: str

    @classmethod
    def learn(
        cls, task: Any, options: dict[str, Any], producer: Any, form: Form
    ) -> AmqpTemplate | None:
        """
        Have Celery make a message, and look at it; None if it has no such form.

        Args:
            task: The task that is called.
            options: The options of all the calls, the task's own among them.
            producer: Celery's, to the broker that they go to.
            form: What the messages have beside.
        """
        connection = producer.connection
        with connection._reraise_as_library_errors():  # noqa: SLF001
            if connection.transport_options.get("confirm_publish"):
                return None  # these have a road of their own
            learner = _Learner(producer.channel, auto_declare=False)
            learner.serializer = producer.serializer
            teach(task, options, learner, form)
            return learner.template(form)

    def settle(self, values: Fields) -> AmqpTemplate | None:
        """Return the template with some blanks filled in; None if a value has no place there."""
        if not self._has_place_for({name: "" for name, _ in self.after.rest} | values):
            return None
        try:
            headers = self.headers.settle(values, _item)
        except Exception:  # noqa: BLE001 (Celery meets it as well, and says so in its own way)
            return None
        return self._replace(headers=headers, after=self.after.settle(values, _short))

    def prepared(self, body: tuple[Any, ...], values: Fields) -> PreparedMessage | None:
        """
        Return one call's message; None if it has no place for a value.

        Args:
            body: Its arguments, keyword arguments and what comes after.
            values: For each blank.
        """
        if not self._has_place_for(values):
            return None
        payload = payload_of(body, self.serializer)
        text = payload.encode(self.encoding) if isinstance(payload, str) else payload
        try:
            table = self.headers.fill(values, _item)
        except Exception:  # noqa: BLE001 (Celery meets it as well, and says so in its own way)
            return None
        head = pack(">HHQ", _BASIC, 0, len(text)) + self.before + pack(">I", len(table))
        return AmqpMessage(self, head + table + self.after.fill(values, _short), text)

    def _has_place_for(self, values: Fields) -> bool:
        headers = values.get("headers")
        if headers and not self.taken.isdisjoint(headers):
            return False
        return all(_is_short(values[name]) for name, _ in self.after.rest)


class _Learner(_Producer):  # type: ignore[misc]
    """A producer that keeps a message, and sends nothing."""

    message: Any = None

    def publish(self, body: Any, serializer: Any = None, **options: Any) -> Any:
        self.embed = body[2]
        self.body_serializer = serializer or self.serializer or "json"
        return super().publish(body, serializer=serializer, **{**options, "retry": False})

    def _publish(self, body: Any, *details: Any) -> None:
        priority, content_type, encoding, headers, properties, key = details[:6]
        mandatory, immediate, exchange, declare = details[6:10]
        for entity in declare:
            self.maybe_declare(entity)
        if headers.get("compression"):
            return
        self.declare = tuple(declare)
        self.place = dumps("Bssbb", (0, exchange, key, mandatory, immediate))
        self.message = self.channel.prepare_message(
            body, priority, content_type, encoding, headers, properties
        )

    def template(self, form: Form) -> AmqpTemplate | None:
        message = self.message
        if message is None:
            return None
        given = message.properties["application_headers"]
        mark_parts(given, message.properties, form)
        table = dumps("F", [given])
        before, found, after = message._serialize_properties().partition(table)  # noqa: SLF001
        headers, rest = Blanks.cut(table[4:], _item), Blanks.cut(after, _short)
        encoding = message.properties.get("content_encoding")
        if not found or headers is None or rest is None or MARK.encode() in before + self.place:
            return None
        return AmqpTemplate(
            pack(">HH", _BASIC, _PUBLISH) + self.place,
            self.declare,
            before,
            headers,
            rest,
            frozenset(given),
            self.embed,
            self.body_serializer,
            encoding or "utf-8",
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
