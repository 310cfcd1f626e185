"""A worker's identity on Redis, and how others find out that it is dead."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

from redis import ConnectionPool
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_batch.fork_guard import forks_delayed

__all__ = ["Keys", "awake_seconds", "describe_self", "is_dead", "machine", "own_pool"]

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Keys:
    """
    Where a worker's messages are written down.

    Args:
        unacked: Kombu's hash of unacknowledged messages, key prefix included.
        index: Kombu's index of their times.
        owner: The worker on one connection; each connection is an owner of its own, so
            that whatever a lost one still does in Redis is not taken for ours.
    """

    unacked: str
    index: str
    owner: str

    @classmethod
    def of(cls, channel: Any, owner: str | None = None) -> Keys:
        """Return the keys of a new owner on one of kombu's Redis channels, or of that owner."""
        prefix, qos = channel.global_keyprefix, channel.qos
        return cls(prefix + qos.unacked_key, prefix + qos.unacked_index_key, owner or uuid4().hex)

    @property
    def owner_of(self) -> str:
        """The hash of delivery tags to owners."""
        return f"{self.unacked}_owner"

    @property
    def owners(self) -> str:
        """The set of all owners."""
        return f"{self.unacked}_owners"

    @property
    def due(self) -> str:
        """The sorted set of owners by the time after which one has shown no sign of life."""
        return f"{self.unacked}_due"

    @property
    def neighbours(self) -> str:
        """The set of the owners on this machine."""
        return f"{self.unacked}_owners_on.{machine()}"

    @property
    def sweeper(self) -> str:
        """Which owner looks for dead ones on behalf of this machine; it expires."""
        return f"{self.unacked}_sweeper_on.{machine()}"

    @property
    def all_held(self) -> str:
        """How the keys of what owners hold begin."""
        return f"{self.unacked}_held."

    @property
    def all_alive(self) -> str:
        """How the keys of the owners' signs of life begin."""
        return f"{self.unacked}_alive."

    @property
    def held(self) -> str:
        """The hash of delivery tags to "1" for running and "0" for waiting."""
        return self.all_held + self.owner

    @property
    def alive(self) -> str:
        """The owner's sign of life, which expires."""
        return self.all_alive + self.owner


@cache
def machine() -> str:
    """
    Return what tells this machine's processes from all others, or "" where that is unknown.

    Containers on one machine share its boot id but not its process ids, so the
    namespace of those belongs to it.
    """
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{(_PROC / 'self/ns/pid').readlink()}"
    except OSError:
        return ""


def describe_self(node: str) -> str:
    """
    Return who this process is, as a line of JSON.

    Args:
        node: The worker's name in Celery.
    """
    pid = os.getpid()
    return json.dumps(
        {"node": node, "machine": machine(), "pid": pid, "started": _started(pid)}, sort_keys=True
    )


def is_dead(description: str) -> bool:
    """Say whether a process lived on this machine and has ended, by what it wrote of itself."""
    try:
        told = json.loads(description)
        if not machine() or told["machine"] != machine():
            return False
        pid = int(told["pid"])
        started = _started(pid)
        if started is None and _may_live(pid):
            return False  # others' processes can be hidden from us
        return bool(started != told["started"])
    except (ValueError, KeyError, TypeError):
        return False


def _started(pid: int) -> str | None:
    """Return when a process started, which tells it from a later one of the same number."""
    try:
        # After the name, which may hold anything: the state, and 19 fields on, the start.
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else fields[19]


def _may_live(pid: int) -> bool:
    """Say whether there is a process of this number that we are not shown."""
    if (_PROC / str(pid) / "stat").exists():
        return False  # it is shown, as one that has ended
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def awake_seconds() -> float:
    """Return a steady clock that goes on while this machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def own_pool(channel: Any, timeout: float) -> ConnectionPool:
    """
    Return connections like a channel's own, for somebody who must not wait for long.

    Args:
        channel: Kombu's Redis channel.
        timeout: Seconds after which a silent Redis is an error.
    """
    like = channel.pool
    options = {**like.connection_kwargs, "socket_timeout": timeout, "health_check_interval": 0}
    if "socket_connect_timeout" in options:
        options["socket_connect_timeout"] = timeout
    options.pop("retry_on_timeout", None)
    options["retry"] = Retry(NoBackoff(), 0)  # who asks us asks again
    kind = type("OwnConnection", (_HoldsForksOff, like.connection_class), {})
    return ConnectionPool(connection_class=kind, **options)


class _HoldsForksOff:
    """A connection that may be made on a thread, beside which no pool process is forked then."""

    def _connect(self) -> Any:
        with forks_delayed():
            return super()._connect()  # type: ignore[misc]
