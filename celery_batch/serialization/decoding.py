"""
Decodes JSON to the same values as kombu, at half the cost.

Large bodies are not decoded where that would block an event loop: the interpreter runs
no other thread meanwhile.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import loads, object_hook

from celery_batch.compat.kombu import decode_again, decoded_body, decoders, set_decoded_body
from celery_batch.serialization.arrays import encoded_hook
from celery_batch.serialization.binary import CONTENT_TYPE, decode_binary

__all__ = [
    "NOTHING_EMBEDDED",
    "OnceDecoded",
    "Undecoded",
    "decode_arguments",
    "decode_body",
    "decode_envelope",
    "decode_envelopes",
    "decode_json",
    "leave_undecoded",
    "payload_of",
]

_JSON = "application/json"

#: A larger body is decoded in the process that needs it; a smaller one takes 1 ms at most.
_LARGE = 1 << 16

#: The beginning of an envelope that kombu has written.
_BODY = b'{"body": "'

#: The end of a body that embeds nothing beside its arguments, and what is embedded then: one
#: value for all messages, which is not changed.
_NO_EMBED = ', {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'
NOTHING_EMBEDDED = json.loads(_NO_EMBED[2:-1])

_decoder = json.JSONDecoder()
_decode, _scan = _decoder.decode, _decoder.scan_once  # type: ignore[attr-defined]

#: An escaped ASCII character, which no encoder writes; ``__type__`` could be written so.
_ESCAPED_ASCII = re.compile(r"\\u00[2-7]")


def decode_json(text: str, hook: Callable[[dict[str, Any]], Any] = object_hook) -> Any:
    """Decode JSON as kombu does, but call `hook` for each object only if there may be types."""
    if _has_types(text):
        return _decoder_with(hook)(text)
    try:
        found, end = _scan(text, 0)
    except StopIteration:
        return _decode(text)  # white space before it, or no JSON, for which it raises an error
    return found if end == len(text) else _decode(text)


def _has_types(text: str) -> bool:
    """Return whether JSON may have typed values."""
    return "__type__" in text or ("\\u00" in text and bool(_ESCAPED_ASCII.search(text)))


@lru_cache(maxsize=8)
def _decoder_with(hook: Callable[[dict[str, Any]], Any]) -> Callable[[str], Any]:
    """Return a decoder, which kombu makes anew for each text."""
    return json.JSONDecoder(object_hook=hook).decode


class Undecoded(list[Any]):
    """The placeholder for the payload of a message whose body is not decoded."""


def leave_undecoded(message: Any) -> bool:
    """Leave a large message of Celery's current protocol undecoded; return whether it is."""
    body = message.body
    if len(body or b"") <= _LARGE or decoded_body(message) is not None:
        return False
    if not _is_plain(message) or body[:1] not in (b"[", "["):
        return False
    set_decoded_body(message, Undecoded(([], {}, None)))
    return True


def decode_envelope(raw: bytes | str) -> Any:
    """Decode a message as it is in Redis; a large body in it is copied without a look into it."""
    if type(raw) is bytes and len(raw) > _LARGE and raw.startswith(_BODY):
        end = raw.find(b'"', len(_BODY))
        body = raw[len(_BODY) : end]
        if end > 0 and b"\\" not in body:
            with suppress(ValueError):  # raised below, for the whole message
                envelope = decode_json((_BODY + raw[end:]).decode())
                envelope["body"] = body.decode()
                return envelope
    return decode_json(bytes_to_str(raw))


#: Between messages that are decoded together; a random text, so that no message contains it.
_MARK = os.urandom(16).hex()
_BETWEEN = f',"{_MARK}",'.encode()


def decode_envelopes(raws: Sequence[bytes], largest: int | None) -> list[Any]:
    """Decode messages together, so that they share names; None for those to decode alone."""
    # Each has some forty names of fields, which would be half of what it takes while it waits.
    most = _LARGE if largest is None else min(largest, _LARGE)
    small = [raw for raw in raws if len(raw) <= most]
    found = iter(_decode_together(small) if len(small) > 1 else ())
    return [next(found, None) if len(raw) <= most else None for raw in raws]


def _decode_together(raws: Sequence[bytes]) -> list[Any]:
    """Return the values of JSON texts; none if one of them is not plain JSON."""
    try:
        text = (b"[%b]" % _BETWEEN.join(raws)).decode()
        if _has_types(text):
            return []
        found, end = _scan(text, 0)
    except (ValueError, RecursionError, StopIteration):
        return []
    # All marks are where they were put, so that what is between two is one whole message.
    is_apart = end == len(text) and found[1::2] == [_MARK] * (len(raws) - 1)
    return found[::2] if is_apart else []


class OnceDecoded:
    """A codec for bodies that decodes a large one only once if it is called twice in a row."""

    def __init__(self, codec: Any) -> None:
        self.encode = codec.encode
        self._decode = codec.decode
        self._last: tuple[Any, Any] | None = None

    def decode(self, text: Any) -> Any:
        """Return the body that a text encodes."""
        last, self._last = self._last, None
        if last is not None and last[0] is text:
            return last[1]
        found = self._decode(text)
        if len(text) > _LARGE:
            self._last = text, found
        return found


def payload_of(message: Any) -> Any:
    """Return a message's payload, but arrays undecoded: nothing here computes, or needs NumPy."""
    if decoded_body(message) is None:
        with suppress(ValueError, RecursionError):  # for which kombu raises its own error
            if _is_plain(message):
                body = message.body
                text = body.decode() if type(body) is bytes else body
                set_decoded_body(message, decode_body(text, encoded_hook))
            elif _is_accepted(message, CONTENT_TYPE):
                set_decoded_body(message, decode_binary(message.body, lambda array: array))
    return message.payload


def decode_body(text: str, hook: Callable[[dict[str, Any]], Any] = object_hook) -> Any:
    """Return a body decoded, as `decode_json`; those that embed nothing share what says so."""
    if text.endswith(_NO_EMBED):
        # The end is in no string, whose quotes would be escaped: what is left is a list.
        found = decode_json(f"{text[: -len(_NO_EMBED)]}]", hook)
        if found:
            return [*found, NOTHING_EMBEDDED]
    return decode_json(text, hook)


def decode_arguments(message: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Return args, kwargs and embedded options of an undecoded message; empty if that fails."""
    try:
        args, kwargs, embed = decode_again(message)
    except Exception:  # noqa: BLE001 (a decoder may raise anything)
        return [], {}, {}
    kinds = isinstance(args, list), isinstance(kwargs, dict), isinstance(embed or {}, dict)
    return (args, kwargs, embed or {}) if all(kinds) else ([], {}, {})


def _is_accepted(message: Any, content_type: str) -> bool:
    return (
        message.content_type == content_type
        and message.accept is not None
        and content_type in message.accept
    )


def _is_plain(message: Any) -> bool:
    return (
        _is_accepted(message, _JSON)
        and type(message.body) in (bytes, str)
        and decoders.get(_JSON) is loads  # or the user has registered another one
    )
