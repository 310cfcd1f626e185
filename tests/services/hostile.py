"""Messages as an attacker, a broken client or another language would write them."""

from __future__ import annotations

import base64
import bz2
import gzip
import json
import lzma
import struct
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any
from uuid import uuid4

import amqp
from amqp.exceptions import FrameSyntaxError as FrameError

from celery_batch.payloads.store import PREFIX
from celery_batch.payloads.values import Payloads
from celery_batch.protocol import PAYLOADS, REPLY_CHANNEL, REPLY_HEADER
from celery_batch.serialization.typed_json import STORED

__all__ = ["HOSTILE", "RAW", "encoded", "post", "stored", "valid", "with_stored"]

#: Bytes of a frame of AMQP, less what surrounds the properties.
_FRAME = 130_000


def valid(task: str = "shop.double", args: Any = (1,), **headers: Any) -> dict[str, Any]:
    """Return a message as kombu puts it into Redis, its body still plain bytes."""
    task_id = str(uuid4())
    body = json.dumps([list(args), {}, dict.fromkeys(("callbacks", "errbacks", "chain", "chord"))])
    return {
        "body": body.encode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {
            "lang": "py",
            "task": task,
            "id": task_id,
            "root_id": task_id,
            "parent_id": None,
            "group": None,
            "eta": None,
            "expires": None,
            "retries": 0,
            "timelimit": [None, None],
            "argsrepr": "(1,)",
            "kwargsrepr": "{}",
            "origin": "hostile@localhost",
            "stamped_headers": None,
            "stamps": {},
            **headers,
        },
        "properties": {
            "correlation_id": task_id,
            "reply_to": str(uuid4()),
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": "celery"},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": str(uuid4()),
        },
    }


def with_stored(values: Sequence[tuple[Any, ...]]) -> tuple[dict[str, Any], str, bytes]:
    """
    Return a message whose arguments are stored beside it, the key of what is stored, and that.

    Args:
        values: Of each argument its bytes, and what the message says of them: the kind, and the
            dtype and the shape of an array.
    """
    payloads = Payloads()
    args = [stored(payloads.add(data), *about) for data, *about in values]
    reference = payloads.reference()
    message = valid("shop.join", args, **{PAYLOADS: list(reference)})
    return message, PREFIX + reference.key(message["headers"]["id"]), bytes(payloads.data)


def stored(index: Any, kind: Any, dtype: Any = "", shape: Any = ()) -> dict[str, Any]:
    """Return a stored value as it is in JSON."""
    return {"__type__": STORED, "__value__": [index, kind, dtype, shape]}


def encoded(message: dict[str, Any]) -> bytes:
    """Return a message as it lies in Redis; a body that is not bytes is left as it is."""
    if isinstance(message.get("body"), bytes):
        message = {**message, "body": base64.b64encode(message["body"]).decode()}
    return json.dumps(message, default=repr).encode()


def nested(depth: int) -> Any:
    """Return a list in a list, that many deep."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def _with(*path: str, value: Any) -> Callable[[], dict[str, Any]]:
    def make() -> dict[str, Any]:
        message = valid()
        place = message
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value() if callable(value) else value  # some are large
        return message

    return make


def _without(*path: str) -> Callable[[], dict[str, Any]]:
    def make() -> dict[str, Any]:
        message = valid()
        place = message
        for step in path[:-1]:
            place = place[step]
        del place[path[-1]]
        return message

    return make


def _body(value: Any) -> Callable[[], dict[str, Any]]:
    if callable(value):
        return _with("body", value=lambda: json.dumps(value()).encode())
    return _with("body", value=value if isinstance(value, bytes) else json.dumps(value).encode())


def _embed(**embed: Any) -> Callable[[], dict[str, Any]]:
    return _body([[1], {}, embed])


def _bomb(method: str, compress: Callable[[bytes], bytes]) -> Callable[[], dict[str, Any]]:
    def make() -> dict[str, Any]:
        message = valid(compression=method)
        message["body"] = compress(b" " * (24 << 20))
        return message

    return make


@cache
def _million() -> dict[str, int]:
    return {str(n): n for n in range(1_000_000)}


@cache
def _million_json() -> bytes:
    return json.dumps(_million()).encode()


_ODD: tuple[Any, ...] = (7, True, 1.5, "text", [1], {"a": 1}, None, "", "a\nb", [["x"]])

_HEADERS = (
    "id", "task", "timelimit", "retries", "eta", "expires", "root_id", "group", "parent_id",
    "shadow", "stamps", "stamped_headers", "argsrepr", "ignore_result", "group_index",
    "replaced_task_nesting", "batch_losses", "batch_rows", "compression", "origin",
    "batch_reply", "batch_track_started",
)  # fmt: skip

_BODIES: tuple[Any, ...] = (
    7, None, "abc", [], [1], [1, 2, 3], [[1], {}], [[1], {}, {}, 1],
    {}, {"a": 1, "b": 2, "c": 3}, {"args": [1]}, {"args": 3, "kwargs": 4},
    {"task": "shop.double"},
    {"task": ["x"], "id": "y"}, [[1], [], {}], [{}, {}, {}], ["ab", {}, {}],
    [[1], {}, 7], [[1], {}, "x"], [[1], {}, [1]], [[1], {"x": 1}, {}], [[1, 2], {}, {}],
)  # fmt: skip

#: Structured messages, each with one thing wrong, for any broker.
HOSTILE: dict[str, Callable[[], dict[str, Any]]] = {
    **{f"{name} missing": _without("headers", name) for name in ("id", "task", "retries")},
    **{
        f"{name} is {value!r}": _with("headers", name, value=value)
        for name in _HEADERS
        for value in _ODD
    },
    "id is huge": _with("headers", "id", value="x" * 1_000_000),
    "id forges a log line": _with("headers", "id", value="x]\n[2026-01-01 CRITICAL] forged"),
    "task forges a log line": _with("headers", "task", value="x\n[2026-01-01 CRITICAL] forged"),
    "shadow forges a log line": _with("headers", "shadow", value="x\n[2026 CRITICAL] forged"),
    "task is huge": _with("headers", "task", value="x" * 1_000_000),
    "task is unknown": _with("headers", "task", value="shop.nothing"),
    "time limits are garbage": _with("headers", "timelimit", value=["soon", {}]),
    "time limits are negative": _with("headers", "timelimit", value=[-1, -1]),
    "time limits are three": _with("headers", "timelimit", value=[1, 2, 3]),
    "retries are huge": _with("headers", "retries", value=10**400),
    "eta before time": _with("headers", "eta", value="0001-01-01T00:00:00+00:00"),
    "eta after time": _with("headers", "eta", value="9999-12-31T23:59:59-14:00"),
    "expires before time": _with("headers", "expires", value="0001-01-01T00:00:00+14:00"),
    "expires after time": _with("headers", "expires", value="9999-12-31T23:59:59-14:00"),
    "reply channel beyond UTF-8": _with("headers", REPLY_HEADER, value=f"{REPLY_CHANNEL}\ud800"),
    "reply channel of two lines": _with("headers", REPLY_HEADER, value=f"{REPLY_CHANNEL}a\nb"),
    "stamp is not hashable": _with("headers", "stamped_headers", value=[{}]),
    "a million headers": _with("headers", value=_million),
    "headers nested deeply": _with("headers", "extra", value=nested(600)),
    "headers nested": _with("headers", "extra", value=nested(200)),
    **{
        f"{name} is {value!r}": _with(name, value=value)
        for name in ("content-type", "content-encoding")
        for value in (*_ODD, "application/x-python-serialize", "x" * 100_000, "utf-16")
    },
    **{
        f"property {name} is {value!r}": _with("properties", name, value=value)
        for name in ("reply_to", "correlation_id", "priority")
        for value in _ODD
    },
    "body empty": _body(b""),
    "body cut short": _body(b'[[1], {}, {"callb'),
    "body not UTF-8": _body(b"\xff\xfe[[1], {}, {}]"),
    "body zeros": _body(bytes(1000)),
    "body nested deeply": _body(b"[" * 100_000),
    "body nested": _body([nested(300), {}, {}]),
    "argument nested": _body([[nested(800)], {}, {}]),
    **{f"body is {value!r}": _body(value) for value in _BODIES},
    "a million arguments": _body(lambda: [list(range(1_000_000)), {}, {}]),
    "a million keywords": _with("body", value=lambda: b"[[], %b, {}]" % _million_json()),
    **{
        f"{name} is {value!r}": _embed(**{name: value})
        for name in ("callbacks", "errbacks", "chain", "chord", "parent_id", "id", "task")
        for value in (7, "text", [1], {"a": 1}, [{"task": "shop.nothing"}], [[[]]])
    },
    "over the limit, no JSON, for an ordinary task": lambda: {
        **valid("shop.plain"),
        "body": b"\xff" * (20 << 20),
    },
    "zlib bomb": _bomb("application/x-gzip", zlib.compress),
    "gzip bomb": _bomb("application/x-gzip", gzip.compress),
    "bzip2 bomb": _bomb("application/x-bz2", bz2.compress),
    "lzma bomb": _bomb("application/x-lzma", lzma.compress),
}


def _raw(*path: str, value: Any) -> Callable[[], bytes]:
    return lambda: encoded(_with(*path, value=value)())


def _cut(*path: str) -> Callable[[], bytes]:
    return lambda: encoded(_without(*path)())


def _scrawl(before: bytes, after: bytes) -> Callable[[], bytes]:
    return lambda: encoded(valid()).replace(before, after, 1)


#: What lies in a Redis list and is no message, or hardly one.
RAW: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "cut short": lambda: encoded(valid())[:300],
    "no JSON": lambda: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "zeros": lambda: bytes(500),
    "invalid UTF-8": lambda: b'{"body": "\xff\xfe"}',
    "nested deeply": lambda: b"[" * 200_000,
    "nested deeply in headers": _scrawl(b'"origin": ', b'"x": ' + b"[" * 5000 + b', "origin": '),
    "a huge number": lambda: b"9" * 100_000,
    "infinity": lambda: b"Infinity",
    "a surrogate": _scrawl(b'"body": "', b'"body": "\\ud800'),
    "unknown typed value": _scrawl(b'"retries": 0', b'"retries": {"__type__":"x","__value__":1}'),
    "bad typed value": _scrawl(b'"eta": null', b'"eta": {"__type__":"datetime","__value__":1}'),
    "a million keys": _million_json,
    **{
        f"just {value!r}": (lambda value=value: json.dumps(value).encode())
        for value in (*_ODD, {}, [], {"body": 1}, {"properties": {}}, {"properties": None})
    },
    **{f"no {name}": _cut(name) for name in ("body", "headers", "properties", "content-type")},
    **{
        f"no {name}": _cut("properties", name)
        for name in ("delivery_tag", "delivery_info", "body_encoding", "correlation_id")
    },
    "no exchange": _cut("properties", "delivery_info", "exchange"),
    "no routing key": _cut("properties", "delivery_info", "routing_key"),
    **{
        f"{name} = {value!r}": _raw(name, value=value)
        for name in ("body", "headers", "properties")
        for value in _ODD
    },
    **{
        f"{name} = {value!r}": _raw("properties", name, value=value)
        for name in ("delivery_tag", "delivery_info", "body_encoding")
        for value in (*_ODD, "rot13")
    },
    **{
        f"{name} = {value!r}": _raw("properties", "delivery_info", name, value=value)
        for name in ("exchange", "routing_key")
        for value in _ODD
    },
    "body no base64": _raw("body", value="A!"),
    "body of one letter": _raw("body", value="A"),
    "exchange beyond numbers": _scrawl(b'"exchange": ""', b'"exchange": 1e999'),
    "tag not UTF-8": _scrawl(b'"delivery_tag": "', b'"delivery_tag": "\xff'),
    "tag is huge": _raw("properties", "delivery_tag", value="x" * 1_000_000),
    "over the limit": lambda: b'{"body": "' + b"A" * (20 << 20) + b'"}',
    "over the limit, nested deeply, for an ordinary task": lambda: (
        b'{"body": ' + b"[" * (20 << 20) + b', "headers": {"task": "shop.plain", "id": "1"}}'
    ),
}


#: What py-amqp raises for what AMQP cannot carry; a LookupError for an unknown encoding.
_UNSENDABLE = (TypeError, ValueError, AttributeError, LookupError)


def post(channel: Any, message: dict[str, Any], queue: str = "celery") -> bool:
    """
    Publish a message to RabbitMQ; say whether AMQP can carry it.

    Args:
        channel: Of py-amqp.
        message: As `valid` makes it.
        queue: Where it goes.
    """
    properties = message.get("properties")
    properties = properties if isinstance(properties, dict) else {}
    names = ("reply_to", "correlation_id", "priority")
    carried = {
        "content_type": message.get("content-type"),
        "content_encoding": message.get("content-encoding"),
        "application_headers": message.get("headers"),
        **{name: properties.get(name) for name in names},
    }
    if not isinstance(carried["application_headers"], (dict, type(None))):
        return False
    carried = {name: value for name, value in carried.items() if value is not None}
    if len(carried.get("application_headers", ())) > _FRAME:
        return False
    try:
        letter = amqp.Message(message.get("body"), **carried)
        # One frame has to hold them, or the broker hangs up on us.
        if len(letter._serialize_properties()) > _FRAME:
            return False
        channel.basic_publish(letter, exchange="", routing_key=queue)
    except (*_UNSENDABLE, FrameError, RecursionError, struct.error):
        return False
    return True
