"""
A message that Celery made, with blanks where calls differ.

Celery makes one message of each kind, with words of ours in the places that
change from call to call; filled in, it is byte for byte what Celery would send.
What a message looks like is therefore known to Celery alone.
"""

from __future__ import annotations

import re
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, NamedTuple

from kombu import messaging
from kombu.serialization import dumps as serialized
from kombu.serialization import registry
from kombu.utils.json import JSONEncoder, dumps

from celery_batch.client.ids import new_id
from celery_batch.client.lesson import BLANK_OPTIONS, MARK, PARTS, Form, mark_parts, teach
from celery_batch.client.outbox import Letter

__all__ = ["Fields", "MessageMaker", "Template", "payload_of"]

_Producer: Any = messaging.Producer

#: What a call fills in: texts and numbers, and as ``headers`` an object of them.
Fields = dict[str, Any]

#: In a text; what is put into one may look like another.
_BLANK = re.compile(r"%%|%\((?P<name>\w+)\)s")

_encode_json = JSONEncoder().encode


class Template(NamedTuple):
    """
    What is the same in all messages of one kind.

    Args:
        key: The Redis list that they go to, with its prefix.
        text: The message with blanks for %-formatting.
        taken: Names of headers that are Celery's, and ours.
        embed: The third part of a body: callbacks and what comes after.
        serializer: Name of the body's serializer.
        codec: Makes a serialized body fit for JSON.
    """

    key: str
    text: str
    taken: frozenset[str]
    embed: dict[str, Any]
    serializer: str
    codec: Any

    @classmethod
    def learn(
        cls, task: Any, options: dict[str, Any], producer: Any, form: Form
    ) -> Template | None:
        """
        Have Celery make a message, and look at it; None if it has no such form.

        Args:
            task: The task that is called.
            options: The options of all the calls, the task's own among them.
            producer: Celery's, to the broker that they go to.
            form: What the messages have beside.
        """
        with producer.connection._reraise_as_library_errors():  # noqa: SLF001
            learner = _Learner(producer.channel, auto_declare=False)
            learner.serializer = producer.serializer
            teach(task, options, learner, form)
            return learner.template(form)

    def settle(self, values: Fields) -> Template | None:
        """Return the template with some blanks filled in; None if a value has no place there."""
        texts = self._texts(values)
        if texts is None:
            return None

        def fill(blank: re.Match[str]) -> str:
            name = blank["name"]
            return texts[name].replace("%", "%%") if name in texts else blank[0]

        return self._replace(text=_BLANK.sub(fill, self.text))

    def letter(self, body: tuple[Any, ...], values: Fields) -> Letter | None:
        """
        Return one call's message; None if it has no place for a value.

        Args:
            body: Its arguments, keyword arguments and what comes after.
            values: For each blank but the body and the tag.
        """
        payload = payload_of(body, self.serializer)
        texts = self._texts(values)
        if texts is None:
            return None
        texts["tag"] = f'"{new_id()}"'
        texts["body"] = f'"{self.codec.encode(payload)}"'
        return Letter(self.key, self.text % texts)

    def _texts(self, values: Fields) -> dict[str, str] | None:
        headers = values.get("headers")
        if headers and not self.taken.isdisjoint(headers):
            return None
        try:
            return {name: _json_text(value) for name, value in values.items()}
        except Exception:  # noqa: BLE001 (Celery meets it as well, and says so in its own way)
            return None


def payload_of(body: tuple[Any, ...], serializer: str) -> Any:
    """
    Return a body serialized as kombu does it, with one encoder for all where it is JSON.

    Raises:
        EncodeError: Kombu's; it cannot be.
    """
    known = registry._encoders.get(serializer)  # noqa: SLF001 (or somebody else's encoder)
    if serializer == "json" and known is not None and known.encoder is dumps:
        try:
            return _encode_json(body)
        except Exception:  # noqa: BLE001 (kombu meets it as well, and says so in its own way)
            return serialized(body, serializer=serializer)[2]
    return serialized(body, serializer=serializer)[2]


class MessageMaker(_Producer):  # type: ignore[misc]
    """A producer that makes messages for Redis, and leaves it to others to put them there."""

    def take(self, key: str, message: dict[str, Any]) -> None:
        """
        Do with a message what is to be done.

        Args:
            key: The list that it goes to, with its prefix.
            message: As kombu would write it.
        """
        raise NotImplementedError

    def pass_on(self, body: Any, details: tuple[Any, ...]) -> None:
        """
        Send a message that is not simply put into one list, as kombu does.

        Args:
            body: Serialized.
            details: The other parameters of kombu's method.
        """
        super()._publish(body, *details)

    def _publish(self, body: Any, *details: Any) -> None:
        priority, content_type, encoding, headers, properties, queue = details[:6]
        exchange, declare = details[8:10]
        channel = self.channel
        for entity in declare:
            self.maybe_declare(entity)
        if exchange or queue in channel._expires:  # noqa: SLF001
            self.pass_on(body, details)
            return
        message = channel.prepare_message(
            body, priority, content_type, encoding, headers, properties
        )
        channel._inplace_augment_message(message, exchange, queue)  # noqa: SLF001
        priority = channel._get_message_priority(message, reverse=False)  # noqa: SLF001
        key = channel.global_keyprefix + channel._q_for_pri(queue, priority)  # noqa: SLF001
        self.take(key, message)


class _Learner(MessageMaker):
    """A producer that keeps a message, and sends nothing."""

    message: dict[str, Any] | None = None

    def publish(self, body: Any, serializer: Any = None, **options: Any) -> Any:
        self.embed = body[2]
        self.body_serializer = serializer or self.serializer or "json"
        return super().publish(body, serializer=serializer, **{**options, "retry": False})

    def take(self, key: str, message: dict[str, Any]) -> None:
        if not message["headers"].get("compression"):
            self.key, self.message = key, message

    def pass_on(self, body: Any, details: tuple[Any, ...]) -> None:
        pass

    def template(self, form: Form) -> Template | None:
        message = self.message
        if message is None:
            return None
        headers, properties = message["headers"], message["properties"]
        codec = self.channel.codecs.get(properties["body_encoding"])
        if codec is None:
            return None
        message["body"] = MARK + "body"
        properties["delivery_tag"] = MARK + "tag"
        mark_parts(headers, properties, form)
        text = dumps(message).replace("%", "%%")
        text = text.replace(f'"{MARK}headers": null', "%(headers)s")
        for blank in (*BLANK_OPTIONS, *PARTS, "body", "tag"):
            text = text.replace(f'"{MARK}{blank}"', f"%({blank})s")
        if MARK in text:
            return None
        taken = frozenset(headers)
        return Template(self.key, text, taken, self.embed, self.body_serializer, codec)


def _json_text(value: Any) -> str:
    if type(value) is str:
        return quoted(value)
    if type(value) is dict:  # some headers among others
        return _encode_json(value)[1:-1]
    return "null" if value is None else str(value)
