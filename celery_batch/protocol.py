"""

What a worker sends on a client's reply channel.

A payload is a row of netstrings, alternating task id and value, the value as it
is stored under the task's key.  An empty value says: stored, go and read it.

What else is said comes as a pair, too, with an id that no task has, so that whoever
does not know it takes no notice.  The first pair may say of which batch the others
come: what is the same for all in a line of JSON, then four bytes for each one's wait.
That a task has started is said with a word before its id.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

__all__ = [
    "FACTS_ID",
    "LARGEST_PAYLOAD",
    "LARGEST_VALUE",
    "NO_WAIT",
    "QUIETLY",
    "REPLY_CHANNEL",
    "REPLY_HEADER",
    "ROWS",
    "STARTED_ID",
    "TRACK_HEADER",
    "BatchInfo",
    "facts_of_all",
    "packed_waits",
    "read_facts",
    "read_replies",
    "write_replies",
]

#: The message header that says how many rows the arguments have; only chunks have it.
ROWS = "batch_rows"

#: What a revoke says of itself that nobody waits for: that tasks are left out when they come
#: is enough, and no worker needs to look into the result store for each of them before.
QUIETLY = "batch_quietly"

#: The message header that names the sending process's reply channel.
REPLY_HEADER = "batch_reply"

#: The message header by which one call asks for its start to be stored and told.
TRACK_HEADER = "batch_track_started"

#: What the name of every reply channel has in it: the header comes from the wire, and
#: may have nothing published anywhere else.
REPLY_CHANNEL = "celery-batch-replies-"

#: Bytes of one payload, about; Redis cuts off a subscriber that lags 8 to 32 MiB behind.
LARGEST_PAYLOAD = 1 << 20

#: Bytes of a value that is still sent along; larger ones are read from where they are stored.
LARGEST_VALUE = 1 << 18

#: In place of a task's id: of which batch the replies that follow come.
FACTS_ID = "celery-batch-facts"

#: What stands before the id of a task that has started.
STARTED_ID = "celery-batch-started:"

#: The wait of one whose answer comes from another batch after all.
NO_WAIT = float("nan")


@dataclass(frozen=True, slots=True)
class BatchInfo:
    """
    How an answer was made: what is known of the model call that gave it.

    Args:
        size: Rows that went through the model together.
        wait: Seconds from the task's arrival at the worker to the start of the model call.
        seconds: How long the model call took.
        worker: The worker's name.
    """

    size: int
    wait: float
    seconds: float
    worker: str


def facts_of_all(size: int, seconds: float, worker: str) -> bytes:
    """Return what a payload says of a batch, but for the waits; see `BatchInfo`."""
    return b'{"size": %d, "seconds": %.6f, "worker": %b}\n' % (size, seconds, _quoted(worker))


@lru_cache(maxsize=16)
def _quoted(text: str) -> bytes:
    return json.dumps(text).encode()


def packed_waits(waits: Sequence[float]) -> bytes:
    """Return waits, in seconds, as they are said: four bytes each."""
    return struct.pack(f"<{len(waits)}f", *waits)


def read_facts(said: bytes, number: int) -> BatchInfo | None:
    """
    Return what a payload says of the batch of one of its replies; None if it cannot be read.

    Args:
        said: What stands behind `FACTS_ID`; from anybody who may publish.
        number: The reply's place among those of the payload, from 0.
    """
    alike, _, waits = said.partition(b"\n")
    try:
        (wait,) = struct.unpack_from("<f", waits, 4 * number)
        facts = json.loads(alike)
        found = BatchInfo(
            int(facts["size"]), round(wait, 6), float(facts["seconds"]), str(facts["worker"])
        )
    except Exception:  # noqa: BLE001 (nobody shall miss an answer for want of its facts)
        return None
    return found if found.wait >= 0 else None


def write_replies(
    replies: Iterable[tuple[str, bytes | str]], alike: bytes = b"", waits: Sequence[float] = ()
) -> list[bytes]:
    """
    Return the payloads, mostly one, to publish on one client's channel.

    Args:
        replies: Task ids and the values stored for them, in final states only.
        alike: What is known of their batch, from `facts_of_all`; empty if nothing is.
        waits: Then the wait of each, in seconds.
    """
    payloads: list[bytes] = []
    parts: list[bytes] = []
    size = first = 0

    def close(end: int) -> None:
        facts = _facts_pair(alike, waits[first:end]) if alike else b""
        payloads.append(facts + b"".join(parts))

    number = -1
    for number, (task_id, stored) in enumerate(replies):
        name = task_id.encode()
        value = stored.encode() if isinstance(stored, str) else stored
        if len(value) > LARGEST_VALUE:
            value = b""
        if size and size + len(value) > LARGEST_PAYLOAD:
            close(number)
            parts, size, first = [], 0, number
        part = b"%d:%b,%d:%b," % (len(name), name, len(value), value)
        parts.append(part)
        size += len(part)
    if parts:
        close(number + 1)
    return payloads


def _facts_pair(alike: bytes, waits: Sequence[float]) -> bytes:
    said = alike + packed_waits(waits)
    return b"%d:%b,%d:%b," % (len(FACTS_ID), FACTS_ID.encode(), len(said), said)


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
