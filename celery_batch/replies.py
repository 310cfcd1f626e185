"""
What a worker tells a client on its reply channel: ids and the values stored for them.

A payload is a row of netstrings, alternating task id and value, the value as it
is stored under the task's key.  An empty value says: stored, go and read it.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = [
    "LARGEST_PAYLOAD",
    "LARGEST_VALUE",
    "REPLY_CHANNEL",
    "REPLY_HEADER",
    "read_replies",
    "write_replies",
]

#: The message header that names the sending process's reply channel.
REPLY_HEADER = "batch_reply"

#: What the name of every reply channel has in it: the header comes from the wire, and
#: may have nothing published anywhere else.
REPLY_CHANNEL = "celery-batch-replies-"

#: Bytes of one payload, about; Redis cuts off a subscriber that lags 8 to 32 MiB behind.
LARGEST_PAYLOAD = 1 << 20

#: Bytes of a value that is still sent along; larger ones are read from where they are stored.
LARGEST_VALUE = 1 << 18


def write_replies(replies: Iterable[tuple[str, bytes | str]]) -> list[bytes]:
    """
    Return the payloads, mostly one, to publish on one client's channel.

    Args:
        replies: Task ids and the values stored for them, in final states only.
    """
    payloads: list[bytes] = []
    parts: list[bytes] = []
    size = 0
    for task_id, stored in replies:
        name = task_id.encode()
        value = stored.encode() if isinstance(stored, str) else stored
        if len(value) > LARGEST_VALUE:
            value = b""
        if size and size + len(value) > LARGEST_PAYLOAD:
            payloads.append(b"".join(parts))
            parts, size = [], 0
        part = b"%d:%b,%d:%b," % (len(name), name, len(value), value)
        parts.append(part)
        size += len(part)
    if parts:
        payloads.append(b"".join(parts))
    return payloads


def read_replies(payload: bytes) -> list[tuple[str, bytes]]:
    """
    Return the ids and values in a payload.

    Args:
        payload: As published; from anybody who may publish.

    Raises:
        ValueError: This is no row of pairs of netstrings.
    """
    strings: list[bytes] = []
    at, end = 0, len(payload)
    while at < end:
        colon = payload.index(b":", at, at + 11)
        start, at = colon + 1, colon + 2 + _length(payload[at:colon])
        if payload[at - 1 : at] != b",":
            raise ValueError("a netstring does not end where it says")
        strings.append(payload[start : at - 1])
    if len(strings) % 2:
        raise ValueError("an id without a value")
    return [(name.decode(), value) for name, value in zip(strings[::2], strings[1::2], strict=True)]


def _length(digits: bytes) -> int:
    if not digits.isdigit():
        raise ValueError("a netstring begins with its length")
    return int(digits)
