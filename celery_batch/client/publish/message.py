"""A message as Celery would send it, made from a template.

Celery makes one message of each kind, with words of ours in the places that
change from call to call; filled in, it is byte for byte what Celery would send.
What a message looks like is therefore known to Celery alone.
"""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta
from json.encoder import encode_basestring_ascii as quoted
from os import urandom
from typing import Any, NamedTuple

from celery import Celery
from celery.utils.saferepr import saferepr
from celery.utils.time import (
    add_seconds_to_datetime,
    isoparse,
    maybe_make_aware,
    subtract_datetimes,
)
from kombu import messaging
from kombu.serialization import dumps as serialized
from kombu.serialization import registry
from kombu.utils.json import JSONEncoder, dumps

from celery_batch.client.publish.buffer import PreparedMessage
from celery_batch.config import max_queue_of
from celery_batch.protocol import REPLY_HEADER

__all__ = [
    "BLANK_OPTIONS",
    "MARK",
    "PARTS",
    "Fields",
    "Form",
    "MessageMaker",
    "Template",
    "Terms",
    "described",
    "expiry_of",
    "mark_parts",
    "new_id",
    "payload_of",
    "teach",
]


#: Never part of a message that is not ours, as nobody can foresee it.
MARK = f"blank-{os.urandom(12).hex()}-"


#: Seconds: for Celery to say what it makes of them, and we where.
_SOME_TIME = 60


#: Arguments of `Celery.send_task` that become blanks.
BLANK_OPTIONS = (
    *("task_id", "root_id", "parent_id", "group_id", "group_index"),
    *("reply_to", "shadow"),
)


#: Blanks that are put into the message once it is made.
PARTS = ("argsrepr", "kwargsrepr", "reply", "headers", "expires", "expiration")


class Form(NamedTuple):
    """
    Which parts a message has that others of its task leave out.

    Args:
        reply: It says where its answer is told.
        expires: It says when it is to run no more.
        headers: It has headers of its caller's.
    """

    reply: bool
    expires: bool
    headers: bool


def teach(
    task: Any,
    options: dict[str, Any],
    learner: Any,
    form: Form,
) -> None:
    """
    Have Celery send a call whose options are blanks.

    Args:
        task: The task that is called.
        options: The options of all the calls, the task's own among them.
        learner: A producer that keeps the message.
        form: What the message has beside.
    """
    headers: dict[str, str | None] = {MARK + "headers": None} if form.headers else {}
    if form.reply:
        headers[REPLY_HEADER] = MARK + "reply"
    options = {**options, "headers": headers, "expires": _SOME_TIME if form.expires else None}
    blanks = {option: MARK + option for option in BLANK_OPTIONS}
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


def mark_parts(headers: dict[str, Any], properties: dict[str, Any], form: Form) -> None:
    """
    Make blanks of what Celery has worked out for itself.

    Args:
        headers: Of a message that Celery made.
        properties: Likewise.
        form: What the message has beside.
    """
    for part in ("argsrepr", "kwargsrepr"):
        headers[part] = MARK + part
    if form.expires:
        headers["expires"] = MARK + "expires"
        properties["expiration"] = MARK + "expiration"


class _NoResult:
    def __init__(self, _task_id: str) -> None:
        self.ignored = True


#: Celery's message protocol that has headers.
_WITH_HEADERS = 2


class Terms:
    """
    What an app's settings say of its calls at one time.

    Looking a setting up costs more than the rest of a call, so that is done once.

    Args:
        app: The Celery app.
    """

    def __init__(self, app: Any) -> None:
        conf = app.conf
        self._outer = conf.changes
        self._live = _dict_of(conf)
        self._seen = dict(self._live)
        self.bulk = bool(conf.get("batch_bulk", True))
        self.is_eager = bool(conf.task_always_eager)
        self.most_queued = max_queue_of(app)
        self.is_plain = not (conf.task_always_eager or conf.task_send_sent_event)
        self.inherits_priority = conf.task_inherit_parent_priority
        self.has_headers = conf.task_protocol == _WITH_HEADERS
        #: Whether its times are UTC, told by Celery's own clock.
        self.is_utc = app.uses_utc_timezone() and getattr(app.now, "__func__", None) is Celery.now
        self.repr_levels = conf.task_repr_maxlevels
        self.args_limit = app.amqp.argsrepr_maxsize
        self.kwargs_limit = app.amqp.kwargsrepr_maxsize

    def hold(self, conf: Any) -> bool:
        """
        Return whether no setting has changed since.

        Args:
            conf: The app's settings.
        """
        return conf.changes is self._outer and self._live == self._seen


def _dict_of(conf: Any) -> Any:
    """Return the dict in which an app's settings are changed, within its wrappers."""
    changes = conf.changes
    while type(changes) is not dict:
        inner = getattr(changes, "data", None)
        if inner is None:
            return changes
        changes = getattr(inner, "changes", inner)
    return changes


#: Characters from which on a text may have to be cut.
_LONG = 1000


#: Characters beside what is inside, and some to spare.
_AROUND = 8


#: Characters of a number in a list, with what parts it from the next.
_SHORTEST = 3


#: Described by their text alone.
_NUMBERS = frozenset((int, float, bool, type(None)))


def described(value: Any, limit: int | None, levels: int) -> str:
    """
    Return what Celery's `saferepr` returns, sooner where the value is plain.

    Args:
        value: A tuple or list of positional, or a dict of keyword arguments.
        limit: Most characters before it is cut, None for any.
        levels: How deep it looks.
    """
    kind = type(value)
    if kind is tuple or kind is list:
        parts = [_part(each, limit, levels) for each in value]
        if None not in parts:
            inside = ", ".join(parts)  # type: ignore[arg-type]
            if limit is None or len(inside) < limit - _AROUND:
                if kind is list:
                    return f"[{inside}]"
                return f"({inside},)" if len(parts) == 1 else f"({inside})"
    elif value == {} and kind is dict:
        return "{}"
    return saferepr(value, limit, levels)  # type: ignore[no-any-return]


def _part(value: Any, limit: int | None, levels: int) -> str | None:
    """Return an argument as `described` would have it, None if only Celery knows; so below."""
    return _listed(value, limit) if type(value) is list and levels != 1 else _plain(value)


def _listed(values: list[Any], limit: int | None) -> str | None:
    """Return a list of plain values, as chunks have for each parameter."""
    if limit is not None and len(values) * _SHORTEST > limit:
        return None  # it will be cut
    if _NUMBERS.issuperset(map(type, values)):
        return repr(values)
    parts, size = [], 0
    for each in values:
        part = _plain(each)
        size += len(part or "")
        if part is None or (limit is not None and size > limit):
            return None
        parts.append(part)
    return f"[{', '.join(parts)}]"


def _plain(value: Any) -> str | None:
    kind = type(value)
    if kind is str:
        return "'" + value.replace("'", "\\'") + "'" if len(value) < _LONG else None
    return str(value) if kind in _NUMBERS else None


#: Each hexadecimal digit with the two bits that say which kind of UUID it is.
_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}


def new_id() -> str:
    """Return a random UUID as Celery's are, for a third of the price."""
    digits = urandom(16).hex()
    return (
        f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}"
        f"-{_VARIANT[digits[16]]}{digits[17:20]}-{digits[20:]}"
    )


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

    def prepared(self, body: tuple[Any, ...], values: Fields) -> PreparedMessage | None:
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
        return PreparedMessage(self.key, self.text % texts)

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


#: Seconds: RabbitMQ counts milliseconds in 32 bits, and closes the channel on who asks for more.
_LONGEST = 2**32 / 1000 - 1


def expiry_of(app: Any, terms: Terms, expires: Any) -> Fields | None:
    """
    Return what a message says of its expiry; None where Celery has something to say of it.

    Args:
        app: The Celery app.
        terms: Its settings.
        expires: Seconds from now, a `datetime`, or one as a text; None for never.
    """
    if expires is None:
        return {}
    if type(expires) in (int, float):
        at, left = None, expires
    elif type(expires) is datetime and expires.tzinfo is UTC and terms.is_utc:
        at, left = expires.isoformat(), (expires - datetime.now(UTC)).total_seconds()
    else:
        try:
            at, left = _time_of(expires), _left(app, expires)
        except Exception:  # noqa: BLE001 (Celery meets it as well, and says so in its own way)
            return None
    if not 0 <= left <= _LONGEST:
        return None
    return {"expires": at or _after(app, terms, left), "expiration": str(int(left * 1000))}


def _time_of(expires: Any) -> Any:
    return expires if type(expires) is str else expires.isoformat()


def _left(app: Any, expires: Any) -> float:
    at = isoparse(expires) if type(expires) is str else expires
    return subtract_datetimes(at, app.now()).total_seconds()  # type: ignore[no-any-return]


def _after(app: Any, terms: Terms, seconds: float) -> str:
    if terms.is_utc:  # what follows comes to the same
        return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()
    at = maybe_make_aware(add_seconds_to_datetime(app.now(), seconds), tz=app.timezone)
    return at.isoformat()  # type: ignore[no-any-return]
