"""

The format that a message must have.

Anything can be written to a broker.  What is checked here is what kombu, Celery and we
rely on without a check: a worker must refuse a malformed message, and must not
fail the other messages with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from celery_batch.protocol import ROWS
from celery_batch.worker.intake.request import LOSSES
from celery_batch.worker.intake.value_formats import (
    LONGEST_NAME,
    are_limits,
    are_signatures,
    are_stamps,
    is_count,
    is_flag,
    is_list_of_texts,
    is_name,
    is_rows,
    is_short_text,
    is_signature,
    is_text,
)

__all__ = [
    "Malformed",
    "TooLarge",
    "check_content",
    "check_envelope",
    "check_headers",
    "check_payload",
    "check_size",
    "check_vital",
    "is_small",
]

_Checks = dict[str, Callable[[Any], bool]]

#: What Celery embeds beside arguments when nothing is to be embedded.
_NOTHING_EMBEDDED = dict.fromkeys(("callbacks", "errbacks", "chain", "chord"))

#: Values in the headers and properties of one message, and levels of nesting.
MOST_VALUES, DEEPEST = 10_000, 50

#: Characters in them altogether.
LONGEST_TEXT = 256 * 1024


class Malformed(ValueError):
    """A message does not have the format of a message."""


class TooLarge(Malformed):
    """A message, or a part of it, has more bytes or values than it may have."""


def is_small(raw: bytes) -> bool:
    """Return whether an encoded message is too small for too many values, levels or characters."""
    return len(raw) <= MOST_VALUES and raw.count(b"{") + raw.count(b"[") <= DEEPEST


def check_envelope(envelope: Any, codecs: Mapping[str, Any], *, small: bool = False) -> None:
    """
    Check the envelope in which brokers without a protocol of their own carry a message.

    Args:
        envelope: As decoded.
        codecs: What the channel can decode bodies with.
        small: It is known to be small, so that nothing needs to be counted.

    Raises:
        Malformed: Kombu cannot read it.
    """
    if not isinstance(envelope, dict):
        raise Malformed(f"it is a {type(envelope).__name__}, not an object")
    if not small:
        check_size({name: value for name, value in envelope.items() if name != "body"})
    properties = envelope.get("properties")
    if not isinstance(properties, dict):
        raise Malformed("it has no properties")
    if not is_name(properties.get("delivery_tag")):
        raise Malformed("its delivery tag is no short text")
    info = properties.get("delivery_info")
    if not isinstance(info, dict) or not {"exchange", "routing_key"} <= info.keys():
        raise Malformed("it does not say where it was sent")
    if not all(info[key] is None or isinstance(info[key], str) for key in _PLACE):
        raise Malformed("where it was sent is no text")
    if not isinstance(envelope.get("headers"), (dict, type(None))):
        raise Malformed("its headers are no object")
    _check_body(envelope.get("body"), properties.get("body_encoding"), codecs)


def check_content(message: Any) -> None:
    """
    Check what is needed to decode the body of a message, on any broker.

    Raises:
        Malformed: Its content type or encoding is no short text.
    """
    for name in ("content_type", "content_encoding"):
        value = getattr(message, name)
        if value is not None and not is_short_text(value):
            raise Malformed(f"its {name.replace('_', ' ')} is no short text")


def check_vital(fields: Mapping[str, Any]) -> None:
    """
    Check the headers of an ordinary task that could stop the whole worker.

    Raises:
        Malformed: A value is of a type that stops Celery's main process.
    """
    vital = ("timelimit", "stamps", "stamped_headers")
    _check_known({name: fields.get(name) for name in vital}, _FIELDS, "")


def check_headers(fields: Mapping[str, Any], properties: Mapping[str, Any]) -> None:
    """
    Check what Celery reads of a batch task's message besides its body.

    Args:
        fields: The headers, and for Celery's older protocol the body's fields.
        properties: Of the message.

    Raises:
        Malformed: A value has a wrong type or size.
    """
    for name in ("id", "task"):
        if not is_name(fields.get(name)):
            raise Malformed(f"{name} cannot be {_short(fields.get(name))}")
    if not _are_common(fields):
        _check_known(fields, _FIELDS, "")
    _check_known(properties, _PROPERTIES, "property ")


def _are_common(fields: Mapping[str, Any]) -> bool:
    """Return whether headers are as in most messages, which is quicker than to check each."""
    get = fields.get
    root = get("root_id")
    return (
        list(map(get, _RARE)) == _NO_RARE
        and list(map(type, map(get, _COMMON))) == list(_COMMON.values())
        and get("retries") == get("replaced_task_nesting") == 0
        and not get("stamps")
        and get("timelimit") == [None, None]
        and len(root or "") <= LONGEST_NAME
        and str(root).isprintable()
    )


def _check_known(values: Mapping[str, Any], known: _Checks, kind: str) -> None:
    for name, value in values.items():
        if value is None:
            continue
        is_valid = known.get(name)
        if is_valid is not None and not is_valid(value):
            raise Malformed(f"{kind}{name} cannot be {_short(value)}")


def check_payload(payload: Any) -> None:
    """
    Check a decoded body: arguments, keyword arguments, what is embedded beside them.

    Raises:
        Malformed: It is something else.
    """
    if isinstance(payload, dict):  # Celery's older protocol
        args, kwargs, embed = payload.get("args", ()), payload.get("kwargs", {}), payload
    elif isinstance(payload, (list, tuple)) and len(payload) == 3:  # noqa: PLR2004 (the protocol's)
        args, kwargs, embed = payload
    else:
        raise Malformed("its body is not arguments, keyword arguments and options")
    if not isinstance(args, (list, tuple)) or not isinstance(kwargs, dict):
        raise Malformed("its arguments are not a list and an object")
    if embed == _NOTHING_EMBEDDED:
        return
    embed = {} if embed is None else embed
    if not isinstance(embed, dict):
        raise Malformed("what is embedded beside its arguments is no object")
    for name in ("callbacks", "errbacks", "chain"):
        if not are_signatures(embed.get(name)):
            raise Malformed(f"its {name} are no list of tasks")
    chord = embed.get("chord")
    if chord is not None and not is_signature(chord):
        raise Malformed("its chord is no task")


def check_size(value: Any) -> None:
    """
    Count the values, levels and characters of headers and properties, without recursion.

    Raises:
        Malformed: There are too many.
    """
    level, values, text = [value], 0, 0
    for _ in range(DEEPEST):
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                below.extend(each)
                below.extend(each.values())
            elif isinstance(each, (list, tuple)):
                below.extend(each)
            elif isinstance(each, (str, bytes)):
                text += len(each)
        values += len(below)
        if values > MOST_VALUES or text > LONGEST_TEXT:
            raise TooLarge("its headers and properties are too large")
        if not below:
            return
        level = below
    raise Malformed("its headers or properties are nested too deeply")


def _check_body(body: Any, encoding: Any, codecs: Mapping[str, Any]) -> None:
    if not isinstance(body, (str, bytes)):
        raise Malformed("its body is no text")
    if encoding is None or encoding == "":
        return
    if not isinstance(encoding, str):
        raise Malformed("the encoding of its body is no text")
    if encoding.lower() == "utf-8":
        return
    if encoding not in codecs:
        raise Malformed(f"its body is encoded as {_short(encoding)}")
    try:
        codecs[encoding].decode(body)
    except ValueError:
        raise Malformed(f"its body is no {encoding}") from None


def _short(value: Any) -> str:
    shown = repr(value) if isinstance(value, (str, float, bool, type(None))) else ""
    return shown[:60] if shown else f"a {type(value).__name__}"


_PLACE = ("exchange", "routing_key")

#: Besides id and task, which are required; the others may all be left out, or null.
_FIELDS: _Checks = {
    **dict.fromkeys(("root_id", "parent_id", "group", "shadow"), is_short_text),
    **dict.fromkeys(("lang", "meth", "origin", "argsrepr", "kwargsrepr"), is_text),
    **dict.fromkeys(("retries", "group_index", "replaced_task_nesting", LOSSES), is_count),
    ROWS: is_rows,
    "ignore_result": is_flag,
    "timelimit": are_limits,
    "stamped_headers": is_list_of_texts,
    "stamps": are_stamps,
}

#: Headers that most messages leave out, and the types of the others.
_RARE = (
    "parent_id",
    "group",
    "shadow",
    "meth",
    "group_index",
    "stamped_headers",
    LOSSES,
    ROWS,
)
_NO_RARE = [None] * len(_RARE)
_COMMON = {
    **dict.fromkeys(("root_id", "lang", "origin", "argsrepr", "kwargsrepr"), str),
    **dict.fromkeys(("retries", "replaced_task_nesting"), int),
    "ignore_result": bool,
    "stamps": dict,
}

_PROPERTIES: _Checks = {
    **dict.fromkeys(("reply_to", "correlation_id"), is_short_text),
    "priority": is_count,
}
