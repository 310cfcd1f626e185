"""
The format that a message must have.

Anything can be written to a broker.  What is checked here is what kombu, Celery and we
rely on without a check: a worker must refuse a malformed message, and must not
fail the other messages with it.  Each check raises `Malformed`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from celery_batch.formatting import with_article
from celery_batch.items.rows import MOST_ROWS
from celery_batch.payloads.values import PayloadReference
from celery_batch.protocol import LOSSES, PAYLOADS, ROWS
from celery_batch.serialization.decoding import NOTHING_EMBEDDED

__all__ = [
    "Malformed",
    "TooLarge",
    "are_limits",
    "check_content",
    "check_envelope",
    "check_headers",
    "check_payload",
    "check_size",
    "check_vital",
    "is_flat",
    "is_name",
    "is_small",
]

_Checks = dict[str, Callable[[Any], bool]]

#: Values in the headers and properties of one message, and levels of nesting.
MOST_VALUES, DEEPEST = 10_000, 50

#: Characters in them altogether.
LONGEST_TEXT = 256 * 1024

#: Characters of an id, a name, a content type: AMQP's own limit for such texts.
LONGEST_NAME = 255

#: Values of Celery's headers that hold nothing.
_NOTHING: tuple[Any, ...] = ({}, [], [None, None])

#: Retries and the like; far above any use, far below what is slow to print.
LARGEST_COUNT = 2**31

_LISTS = (list, tuple, set, frozenset)

#: Types of values that hold no others, whatever their size.
_SINGLE = frozenset((int, float, bool, type(None)))

#: Most values, and most characters of them and their names, far below any limit.
_FEW_VALUES, _FEW_CHARACTERS = 100, 10_000


class Malformed(ValueError):
    """A message does not have the format of a message."""


class TooLarge(Malformed):
    """A message, or a part of it, has more bytes or values than it may have."""


def is_small(raw: bytes) -> bool:
    """Return whether an encoded message is too small for too many values, levels or characters."""
    return len(raw) <= MOST_VALUES and raw.count(b"{") + raw.count(b"[") <= DEEPEST


def check_envelope(envelope: Any, codecs: Mapping[str, Any], *, small: bool = False) -> None:
    """Check the envelope of brokers without a protocol of their own; a small one is not counted."""
    if not isinstance(envelope, dict):
        raise Malformed(f"it is {with_article(type(envelope).__name__)}, not an object")
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
    """Check what is needed to decode the body of a message, on any broker."""
    for name in ("content_type", "content_encoding"):
        value = getattr(message, name)
        if value is not None and not _is_short_text(value):
            raise Malformed(f"its {name.replace('_', ' ')} is no short text")


def check_vital(fields: Mapping[str, Any]) -> None:
    """Check the headers of an ordinary task that could stop the whole worker."""
    vital = ("timelimit", "stamps", "stamped_headers")
    _check_known({name: fields.get(name) for name in vital}, _FIELDS, "")


def check_headers(fields: Mapping[str, Any], properties: Mapping[str, Any]) -> None:
    """Check what Celery reads of a batch task's message besides its body."""
    for name in ("id", "task"):
        if not is_name(fields.get(name)):
            raise Malformed(f"{name} cannot be {_short(fields.get(name))}")
    _check_known(fields, _FIELDS, "")
    _check_known(properties, _PROPERTIES, "property ")


def _check_known(values: Mapping[str, Any], known: _Checks, kind: str) -> None:
    for name, value in values.items():
        if value is None:
            continue
        is_valid = known.get(name)
        if is_valid is not None and not is_valid(value):
            raise Malformed(f"{kind}{name} cannot be {_short(value)}")


def check_payload(payload: Any, *, is_current: bool = True) -> None:
    """Check a decoded body; `is_current` says that the headers name the task, as in protocol 2."""
    # Celery reads an object as arguments in its older protocol, or where it says "args".
    if isinstance(payload, dict) and ("args" in payload or not is_current):
        args, kwargs, embed = payload.get("args", ()), payload.get("kwargs", {}), payload
    elif isinstance(payload, (list, tuple)) and len(payload) == 3:  # noqa: PLR2004 (the protocol's)
        args, kwargs, embed = payload
    else:
        raise Malformed("its body is not arguments, keyword arguments and options")
    if not isinstance(args, (list, tuple)) or not isinstance(kwargs, dict):
        raise Malformed("its arguments are not a list and an object")
    if embed == NOTHING_EMBEDDED:
        return
    embed = {} if embed is None else embed
    if not isinstance(embed, dict):
        raise Malformed("what is embedded beside its arguments is no object")
    for name in ("callbacks", "errbacks", "chain"):
        if not _are_signatures(embed.get(name)):
            raise Malformed(f"its {name} are no list of tasks")
    chord = embed.get("chord")
    if chord is not None and not _is_signature(chord):
        raise Malformed("its chord is no task")


def check_size(value: Any) -> None:
    """Count the values, levels and characters of headers and properties, without recursion."""
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
    """Return a single value, or a pair of them such as time limits, as Python writes it."""
    is_pair = isinstance(value, (list, tuple)) and len(value) <= 2  # noqa: PLR2004 (a pair's)
    shown = value if is_pair else [value]
    if all(isinstance(each, (str, float, bool, type(None))) for each in shown):
        return repr(value)[:60]
    return with_article(type(value).__name__)


def is_flat(table: dict[Any, Any], known: Any = None) -> bool:
    """Return whether a table has few and short values, and no nested ones but a known one."""
    if len(table) > _FEW_VALUES:
        return False
    size = 0
    for name, value in table.items():
        if type(name) is not str:
            return False
        size += len(name)
        kind = type(value)
        if kind is str:
            size += len(value)
        elif kind not in _SINGLE and value is not known and value not in _NOTHING:
            return False
    return size <= _FEW_CHARACTERS


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_short_text(value: Any) -> bool:
    """Return whether a value is a short text of one line."""
    return isinstance(value, str) and len(value) <= LONGEST_NAME and value.isprintable()


def is_name(value: Any) -> bool:
    """Return whether a value is a short text that is not empty, as ids and names are."""
    return _is_short_text(value) and value != ""


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_count(value: Any) -> bool:
    """Return whether a value is a whole number that counts something."""
    return isinstance(value, int) and not _is_flag(value) and 0 <= value < LARGEST_COUNT


def _is_reference(value: Any) -> bool:
    """Return whether a value refers to what is stored beside a message."""
    try:
        PayloadReference.from_header(value)
    except ValueError:
        return False
    return True


def _is_limit(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not _is_flag(value)
    return value is None or (is_number and 0 <= value < math.inf)


def are_limits(value: Any) -> bool:
    """Return whether a value is a hard and a soft time limit, each a number of seconds or None."""
    if value == [None, None]:
        return True
    is_pair = isinstance(value, (list, tuple)) and len(value) == 2  # noqa: PLR2004 (hard and soft)
    return is_pair and all(map(_is_limit, value))


def _is_list_of_texts(value: Any) -> bool:
    """Return whether a value is a list of texts, as the names of stamps are."""
    return isinstance(value, _LISTS) and all(map(_is_text, value))


def _are_stamps(value: Any) -> bool:
    """Return whether a value is stamps by name: each a text or number, or a list of these."""
    return isinstance(value, dict) and all(map(_is_stamp, value.values()))


def _is_stamp(value: Any) -> bool:
    each = value if isinstance(value, _LISTS) else [value]
    return all(isinstance(one, (str, int, float, type(None))) for one in each)


def _is_signature(value: Any) -> bool:
    """Return whether a value is a task to call, as Celery serializes it."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("task"), str)
        and isinstance(value.get("args"), (list, tuple, type(None)))
        and isinstance(value.get("kwargs"), (dict, type(None)))
        and isinstance(value.get("options"), (dict, type(None)))
    )


def _are_signatures(value: Any) -> bool:
    """Return whether a value is one task to call or several, or None."""
    if value is None or _is_signature(value):
        return True
    return isinstance(value, (list, tuple)) and all(map(_is_signature, value))


_PLACE = ("exchange", "routing_key")

#: Besides id and task, which are required; the others may all be left out, or null.
_FIELDS: _Checks = {
    **dict.fromkeys(("root_id", "parent_id", "group", "shadow"), _is_short_text),
    **dict.fromkeys(("lang", "meth", "origin", "argsrepr", "kwargsrepr"), _is_text),
    **dict.fromkeys(("retries", "group_index", "replaced_task_nesting", LOSSES), _is_count),
    ROWS: lambda value: _is_count(value) and 1 <= value <= MOST_ROWS,
    PAYLOADS: _is_reference,
    "ignore_result": _is_flag,
    "timelimit": are_limits,
    "stamped_headers": _is_list_of_texts,
    "stamps": _are_stamps,
}

_PROPERTIES: _Checks = {
    **dict.fromkeys(("reply_to", "correlation_id"), _is_short_text),
    "priority": _is_count,
}
