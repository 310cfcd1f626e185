"""
Messages with something wrong, without end: by structure and by bytes.

The first kind is drawn by hypothesis from a valid message: values are left out,
replaced by others of any type, nested, cut and moved.  The second kind changes the
bytes of a valid or hostile message as a coverage-blind fuzzer does.

Many of both kinds have values that are stored beside them, and these are changed, too.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from celery_batch.protocol import PAYLOADS
from tests.services.hostile import HOSTILE, RAW, encoded, nested, stored, valid, with_stored

__all__ = ["bytes_mutants", "structural_mutants"]


def _copy(value: Any) -> Any:
    """Return a copy that may be changed: what is sampled is the same object each time."""
    return json.loads(json.dumps(value))


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=50)
    | st.sampled_from(["", "shop.join", "shop.plain", "shop.nothing", "json", "utf-8", "base64"])
    | st.sampled_from(["x" * 10_000, "\x00", "\ud800", "\r\n[CRITICAL]", "../../etc", "1e999"])
    | st.sampled_from([2**31, 2**63, -1, 1e308, "2026-01-01T00:00:00", "application/x-yaml"])
    | st.builds(nested, st.sampled_from([20, 60, 400]))
    | st.builds(lambda: {"__type__": "datetime", "__value__": 1})
    | st.builds(
        stored,
        st.sampled_from([0, 1, 2, -1, 2**63, "0", None]),
        st.sampled_from(["ndarray", "tensor", "bytes", "json", "", "object", 1]),
        st.sampled_from(["<f4", "<f8", "|O", "bfloat16", "float32", "<M8[s]", "<U4", "i4,i4", ""]),
        st.sampled_from([[4], [], [0], [2**62, 2**62], [-1], [2, 2], "4", [[4]], [1] * 70]),
    ).map(_copy)
    | st.builds(
        lambda *parts: [*parts],
        st.sampled_from(["f" * 16, "F" * 16, "*" * 16, "", "../..", 7]),
        st.sampled_from([[16], [2**28], [2**28 + 1], [2**63], [-1], [0], [], [1] * 1001, [True]]),
        st.sampled_from([0, -1, 2**64, 1.5, "0", None]),
    ).map(_copy),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)

#: What hurts parsers: brackets, quotes, escapes, numbers out of range, broken UTF-8.
_TOKENS = (
    b"{", b"}", b"[", b"]", b'"', b"\\", b",", b":", b"\\u0000", b"\\ud800", b"\x00", b"\xff",
    b"null", b"true", b"NaN", b"-Infinity", b"1e999", b"0x10", b"9" * 400, b"[" * 2000, b"\n",
    b'"delivery_tag"', b'"headers"', b'"task"', b'"id"', b"\xed\xa0\x80", b"\xc0\xaf",
)  # fmt: skip


#: Of arguments that are stored: their bytes, and what the message says of them.
_STORED = (
    (bytes(16), "ndarray", "<f4", [4]),
    (bytes(range(48)), "ndarray", "<f8", [2, 3]),
    (bytes(10), "tensor", "bfloat16", [5]),
    (b"bytes" * 9, "bytes"),
    (b'{"a": [1, "text"]}', "json"),
    (b'["' + b"x" * 20_000 + b'"]', "json"),
)


@st.composite
def _mutants(draw: Callable[..., Any], payloads: dict[str, Any]) -> dict[str, Any]:
    stored_only = draw(st.booleans())
    if stored_only or draw(st.booleans()):
        values = draw(st.lists(st.sampled_from(_STORED), min_size=1, max_size=2))
        message, key, data = with_stored(values)
        how = draw(st.sampled_from(["stored", "stored", "changed", "other", "list", "lost"]))
        match how:
            case "stored":
                payloads[key] = data
            case "changed":
                payloads[key] = _change(data, random.Random(draw(st.integers(0, 99))))  # noqa: S311
            case "other":
                payloads[key] = draw(st.binary(max_size=99))
            case "list":
                payloads[key] = [data]
    else:
        message = valid(draw(st.sampled_from(["shop.join", "shop.join", "shop.plain"])))
    if stored_only or draw(st.booleans()):  # the body is as hostile as what is around it
        message["body"] = json.loads(message["body"])
    for _ in range(draw(st.integers(0 if stored_only else 1, 3))):
        places = list(_places_of_stored(message) if stored_only else _places(message))
        holder, key = draw(st.sampled_from(places or [(message, "headers")]))
        _mutate(draw, holder, key)
    if not isinstance(message.get("body"), (bytes, str, type(None))):
        message["body"] = json.dumps(message["body"], default=repr).encode()
    return message


def _mutate(draw: Callable[..., Any], holder: Any, key: Any) -> None:
    match draw(st.sampled_from(["drop", "replace", "replace", "nest", "cut", "twice", "rename"])):
        case "drop":
            del holder[key]
        case "replace":
            holder[key] = draw(_VALUES)
        case "nest":
            holder[key] = [holder[key]] if draw(st.booleans()) else {"x": holder[key]}
        case "cut" if isinstance(holder[key], (str, bytes, list)):
            holder[key] = holder[key][: draw(st.integers(0, max(len(holder[key]) - 1, 0)))]
        case "twice" if isinstance(holder[key], (str, bytes, list)):
            holder[key] = holder[key] * 2
        case "rename" if isinstance(holder, dict):
            holder[draw(st.text(max_size=9))] = holder.pop(key)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, (dict, list)):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


def _places_of_stored(message: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the places of arguments, and of what a header says that is stored."""
    yield from _places(message["body"][0] if message["body"] else None)
    yield from _places(message["headers"].get(PAYLOADS))


def structural_mutants(count: int, number: int, payloads: dict[str, Any]) -> list[dict[str, Any]]:
    """
    Return messages changed by structure; the same ones for the same number.

    Args:
        count: How many.
        number: The seed.
        payloads: Is given what is to be stored beside them, by key: bytes, or a list of them.
    """
    found: list[dict[str, Any]] = []

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(_mutants(payloads))
    def collect(message: dict[str, Any]) -> None:
        if not _would_stop_its_batch(message):
            found.append(message)

    collect()
    return found


def bytes_mutants(count: int, number: int, payloads: dict[str, Any]) -> list[bytes]:
    """
    Return messages changed byte by byte; the same ones for the same number.

    Args:
        count: How many.
        number: The seed.
        payloads: Is given what is to be stored beside them, by key.
    """
    dice = random.Random(number)  # noqa: S311 (dice, not keys)
    small = [make for name, make in RAW.items() if "million" not in name and "limit" not in name]
    found = []
    for _ in range(count):
        kind = dice.random()
        if kind < 0.4:
            raw = encoded(valid("shop.join"))
        elif kind < 0.8:
            message, key, data = with_stored(dice.choices(_STORED, k=dice.randint(1, 2)))
            payloads[key] = data if dice.random() < 0.5 else _change(data, dice)
            raw = encoded(message)
        elif kind < 0.9:
            raw = dice.choice(small)()[:20_000]
        else:
            raw = encoded(dice.choice([HOSTILE["body nested"], HOSTILE["headers nested"]])())
        for _ in range(dice.randint(1, 6)):
            raw = _change(raw, dice)
        found.append(raw)
    return found


def _change(raw: bytes, dice: random.Random) -> bytes:
    at, to = sorted((dice.randint(0, len(raw)), dice.randint(0, len(raw))))
    to = min(to, at + 64)
    match dice.randrange(6):
        case 0:  # flip a bit
            return (
                raw[:at] + bytes([raw[at] ^ 1 << dice.randrange(8)]) + raw[at + 1 :]
                if raw[at:]
                else raw
            )
        case 1:  # leave a piece out
            return raw[:at] + raw[to:]
        case 2:  # say a piece twice
            return raw[:to] + raw[at:]
        case 3:  # put something in
            return raw[:at] + dice.choice(_TOKENS) + raw[at:]
        case 4:  # put something in its place
            return raw[:at] + dice.choice(_TOKENS) + raw[to:]
    return raw[:at]  # stop


def _would_stop_its_batch(message: dict[str, Any]) -> bool:
    """Say whether it asks, in good form, for a time limit that its whole batch must miss."""
    headers = message.get("headers")
    limits = headers.get("timelimit") if isinstance(headers, dict) else None
    limits = limits if isinstance(limits, list) else []
    return any(isinstance(limit, (int, float)) and 0 < limit < 5 for limit in limits)
