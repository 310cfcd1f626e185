"""
A message that Celery made, with blanks where calls differ.

Celery makes one message of each kind, with words of ours in the places that
change from call to call; filled in, it is byte for byte what Celery would send.
What a message looks like is therefore known to Celery alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, NamedTuple

from kombu import messaging
from kombu.serialization import dumps as serialized
from kombu.serialization import registry
from kombu.utils.json import JSONEncoder, dumps

from celery_batch.client.ids import new_id
from celery_batch.client.outbox import Letter
from celery_batch.replies import REPLY_HEADER

__all__ = ["BLANK_OPTIONS", "MARK", "Fields", "MessageMaker", "Template", "payload_of", "teach"]

_Producer: Any = messaging.Producer

#: What a call fills in.
Fields = dict[str, str | int | None]

#: Never part of a message that is not ours, as nobody can foresee it.
MARK = f"blank-{os.urandom(12).hex()}-"

#: In a text; what is put into one may look like another.
_BLANK = re.compile(r"%%|%\((?P<name>\w+)\)s")

_encode_json = JSONEncoder().encode

#: Arguments of `Celery.send_task` that become blanks.
BLANK_OPTIONS = (
    *("task_id", "root_id", "parent_id", "group_id", "group_index"),
    *("reply_to", "eta", "shadow"),
)
#: Blanks that are put into the message once it is made.
_BLANK_PARTS = ("body", "argsrepr", "kwargsrepr", "tag", "reply")


class Template(NamedTuple):
    """
    What is the same in all messages of one kind.

    Args:
        key: The Redis list that they go to, with its prefix.
        text: The message with blanks for %-formatting.
        embed: The third part of a body: callbacks and what comes after.
        serializer: Name of the body's serializer.
        codec: Makes a serialized body fit for JSON.
    """

    key: str
    text: str
    embed: dict[str, Any]
    serializer: str
    codec: Any

    @classmethod
    def learn(
        cls, task: Any, options: dict[str, Any], producer: Any, *, reply: bool
    ) -> Template | None:
        """
        Have Celery make a message, and look at it; None if it has no such form.

        Args:
            task: The task that is called.
            options: The options of all the calls, the task's own among them.
            producer: Celery's, to the broker that they go to.
            reply: Whether the messages say where their answers are told.
        """
        with producer.connection._reraise_as_library_errors():  # noqa: SLF001
            learner = _Learner(producer.channel, auto_declare=False)
            learner.serializer = producer.serializer
            teach(task, options, learner, reply=reply)
            return learner.template()

    def settle(self, values: Fields) -> Template:
        """Return the template with some blanks filled in."""

        def fill(blank: re.Match[str]) -> str:
            name = blank["name"]
            return _json_text(values[name]).replace("%", "%%") if name in values else blank[0]

        return self._replace(text=_BLANK.sub(fill, self.text))

    def letter(self, body: tuple[Any, ...], values: Fields) -> Letter:
        """
        Return one call's message.

        Args:
            body: Its arguments, keyword arguments and what comes after.
            values: For each blank but the body and the tag.
        """
        payload = payload_of(body, self.serializer)
        texts = {name: _json_text(value) for name, value in values.items()}
        texts["tag"] = f'"{new_id()}"'
        texts["body"] = f'"{self.codec.encode(payload)}"'
        return Letter(self.key, self.text % texts)


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


def teach(
    task: Any,
    options: dict[str, Any],
    learner: Any,
    *,
    reply: bool,
    without: Collection[str] = (),
) -> None:
    """
    Have Celery send a call whose options are blanks.

    Args:
        task: The task that is called.
        options: The options of all the calls, the task's own among them.
        learner: A producer that keeps the message.
        reply: Whether the message says where its answer is told.
        without: Options that are left out.
    """
    blanks = {option: MARK + option for option in BLANK_OPTIONS if option not in without}
    if reply:
        options = {**options, "headers": {REPLY_HEADER: MARK + "reply"}}
    task.app.send_task(
        task.name,
        (),
        {},
        producer=learner,
        task_type=task,
        result_cls=_NoResult,
        add_to_parent=False,
        **blanks,
        **options,
    )


class _NoResult:
    def __init__(self, _task_id: str) -> None:
        self.ignored = True


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

    def template(self) -> Template | None:
        message = self.message
        if message is None:
            return None
        codec = self.channel.codecs.get(message["properties"]["body_encoding"])
        if codec is None:
            return None
        message["body"] = MARK + "body"
        for part in ("argsrepr", "kwargsrepr"):
            message["headers"][part] = MARK + part
        message["properties"]["delivery_tag"] = MARK + "tag"
        text = dumps(message).replace("%", "%%")
        for blank in (*BLANK_OPTIONS, *_BLANK_PARTS):
            text = text.replace(f'"{MARK}{blank}"', f"%({blank})s")
        if MARK in text:
            return None
        return Template(self.key, text, self.embed, self.body_serializer, codec)


def _json_text(value: str | int | None) -> str:
    if type(value) is str:
        return quoted(value)
    return "null" if value is None else str(value)
