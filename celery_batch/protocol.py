"""
The headers of messages, and the notifications on a client's reply channel.

The payload of a notification is a sequence of netstrings, in turn a task's id and its stored
value.  An empty value means that the client has to read it from the result store.

The first pair may have the facts of the batch, with an id that no task has: those that all tasks
share, as a line of JSON, then the wait of each task in four bytes.  A task that has only started
has a prefix before its id.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

__all__ = [
    "FACTS_ID",
    "LARGEST_PAYLOAD",
    "LARGEST_VALUE",
    "LOSSES",
    "NEEDS_ANSWER",
    "NO_WAIT",
    "PAYLOADS",
    "QUIETLY",
    "READS_PAYLOADS",
    "REPLY_CHANNEL",
    "REPLY_HEADER",
    "ROWS",
    "SENT",
    "STARTED_ID",
    "TRACK_HEADER",
    "BatchInfo",
    "BatchPlan",
    "about_batch",
    "batch_facts",
    "pack_waits",
    "read_facts",
    "read_replies",
    "write_replies",
]

#: The message header with the number of rows of the arguments; only chunks have it.
ROWS = "batch_rows"

#: The message header with the time of the call, in milliseconds since 1970; only calls of tasks
#: with a latency target have it.  0 is that of calls which need not keep the target.
SENT = "batch_sent"

#: The message header of a call each of whose rows needs an answer: `Ignore` and `Reject` are errors
#: of their rows, as of rows among others.
NEEDS_ANSWER = "batch_needs_answer"

#: The message header that counts how often a process died while it ran the request.
LOSSES = "batch_losses"

#: The argument of a revoke whose sender does not wait for it: workers skip the tasks when they
#: arrive, and need not look up the result of each before.
QUIETLY = "batch_quietly"

#: The message header that names the sending process's reply channel.
REPLY_HEADER = "batch_reply"

#: The message header with the reference to the values that are stored beside the message; the
#: same name in a result's meta data for those of the result.
PAYLOADS = "batch_payloads"

#: The message header of a call whose sender reads values that are stored beside its result.
READS_PAYLOADS = "batch_reads_payloads"

#: The message header of a call whose start is to be stored and notified.
TRACK_HEADER = "batch_track_started"

#: A part of the name of every reply channel.  The header comes from the network, and must not
#: make a worker publish on other channels.
REPLY_CHANNEL = "celery-batch-replies-"

#: Bytes of one payload, about; Redis disconnects a subscriber that lags 8 to 32 MiB behind.
LARGEST_PAYLOAD = 1 << 20

#: Most bytes of a value in a notification; clients read larger ones from the result store.
LARGEST_VALUE = 1 << 18

#: In place of a task's id: the facts of the batch of the replies that follow.
FACTS_ID = "celery-batch-facts"

#: The prefix of the id of a task that has started.
STARTED_ID = "celery-batch-started:"

#: The wait of a task whose result is from another batch.
NO_WAIT = float("nan")


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """
    How a batch was chosen, where its task has a latency target.

    Args:
        a: Seconds of a call of the model, as far as they were known.
        b: Seconds of each row in it, or of each unit of cost.
        limit: The most rows or the highest cost that it might have had.
        why: Why no more, such as ``"target"`` or ``"policy"``.
        predicted: Seconds from the call of its oldest request to the stored result.
    """

    a: float
    b: float
    limit: float
    why: str
    predicted: float


@dataclass(frozen=True, slots=True)
class BatchInfo:
    """
    The model call that computed a result.

    Args:
        size: Rows in the model call.
        wait: Seconds from the task's arrival at the worker to the start of the model call.
        seconds: How long the model call took.
        worker: The worker's name.
        cached: How many of the task's rows were answered from the cache, 1 for a single item; if
            all were, the size is 0 and the wait ends with the lookup.
        reason: Why the batch left, such as ``"full"``.
        padding: The part of what was computed that was padding; None if that is not known, as
            for rows without a cost in calls of any size.
        plan: How it was chosen, if its task has a ``target_latency``.
    """

    size: int
    wait: float
    seconds: float
    worker: str
    cached: int = 0
    reason: str = ""
    padding: float | None = None
    plan: BatchPlan | None = None


def about_batch(
    reason: str, padding: float | None = None, plan: Sequence[Any] | None = None
) -> bytes:
    """Return what `batch_facts` takes about a batch of one or of several calls; see `BatchInfo`."""
    about = b', "reason": %b' % _quoted(reason)
    if padding is not None:
        about += b', "padding": %.4f' % padding
    return about if plan is None else about + b', "plan": %b' % json.dumps(plan).encode()


def batch_facts(
    size: int, seconds: float, worker: str, cached: int = 0, about: bytes = b""
) -> bytes:
    """Return the facts of a batch that all its tasks share; see `BatchInfo`."""
    more = b', "cached": %d' % cached if cached else b""
    return b'{"size": %d, "seconds": %.6f, "worker": %b%b}\n' % (
        size,
        seconds,
        _quoted(worker),
        more + about,
    )


@lru_cache(maxsize=16)
def _quoted(text: str) -> bytes:
    return json.dumps(text).encode()


def pack_waits(waits: Sequence[float]) -> bytes:
    """Return waits, in seconds, in four bytes each."""
    return struct.pack(f"<{len(waits)}f", *waits)


def read_facts(facts: bytes, number: int) -> BatchInfo | None:
    """Return the facts, which are not trusted, of a reply by its place; None if unreadable."""
    shared, _, waits = facts.partition(b"\n")
    try:
        (wait,) = struct.unpack_from("<f", waits, 4 * number)
        fields = json.loads(shared)
        found = BatchInfo(
            int(fields["size"]),
            round(wait, 6),
            float(fields["seconds"]),
            str(fields["worker"]),
            int(fields.get("cached", 0)),
            str(fields.get("reason", "")),
            float(fields["padding"]) if "padding" in fields else None,
            _read_plan(fields.get("plan")),
        )
    except Exception:  # noqa: BLE001 (a result does not need its facts)
        return None
    return found if found.wait >= 0 else None


def _read_plan(plan: Any) -> BatchPlan | None:
    if plan is None:
        return None
    a, b, limit, why, predicted = plan
    return BatchPlan(float(a), float(b), float(limit), str(why), float(predicted))


def write_replies(
    replies: Iterable[tuple[str, bytes | str]], shared: bytes = b"", waits: Sequence[float] = ()
) -> list[bytes]:
    """Return the payloads for one client's channel: ids with values, and the facts with waits."""
    payloads: list[bytes] = []
    parts: list[bytes] = []
    size = first = 0

    def close(end: int) -> None:
        if shared:
            facts = shared + pack_waits(waits[first:end])
            parts.insert(0, b"%d:%b,%d:%b," % (len(FACTS_ID), FACTS_ID.encode(), len(facts), facts))
        payloads.append(b"".join(parts))

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


def read_replies(payload: bytes) -> list[tuple[str, bytes]]:
    """Return the ids and values in a payload; raise `ValueError` for anything else."""
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
