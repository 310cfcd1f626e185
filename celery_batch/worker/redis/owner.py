"""A worker's identity on Redis, and how other workers find out that it is dead."""

from __future__ import annotations

import json
import os
import time
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

from redis import ConnectionPool
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_batch.processes.fork_guard import forks_delayed

__all__ = ["Keys", "boottime", "describe_self", "is_dead", "machine", "own_pool"]

_PROC = Path("/proc")


class Keys:
    """The Redis keys of one owner, that is one connection of a worker; see ``scripts.py``."""

    def __init__(self, unacked: str, index: str, owner: str) -> None:
        self.unacked, self.index, self.owner = unacked, index, owner
        self.owner_of = f"{unacked}_owner"
        self.due = f"{unacked}_due"
        self.on_machine = f"{unacked}_owners_on.{machine()}"
        self.search_lock = f"{unacked}_search_lock_on.{machine()}"
        self.held_prefix, self.alive_prefix = f"{unacked}_held.", f"{unacked}_alive."
        self.held, self.alive = self.held_prefix + owner, self.alive_prefix + owner

    @classmethod
    def of(cls, channel: Any) -> Keys:
        """Return the keys of a new owner on one of kombu's Redis channels."""
        prefix, qos = channel.global_keyprefix, channel.qos
        return cls(prefix + qos.unacked_key, prefix + qos.unacked_index_key, uuid4().hex)

    def of_owner(self, owner: str) -> Keys:
        """Return the keys of another owner on the same Redis."""
        return Keys(self.unacked, self.index, owner)


@cache
def machine() -> str:
    """Return an id of this machine and its namespace of process ids, or "" if it is unknown."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{(_PROC / 'self/ns/pid').readlink()}"
    except OSError:
        return ""


def describe_self(node: str) -> str:
    """Return a description of this process, with its worker's node name, as a line of JSON."""
    pid = os.getpid()
    return json.dumps(
        {"node": node, "machine": machine(), "pid": pid, "started": _started(pid)}, sort_keys=True
    )


def is_dead(description: str) -> bool:
    """Return whether the process of a description ran on this machine and has ended."""
    try:
        described = json.loads(description)
        if not machine() or described["machine"] != machine():
            return False
        pid = int(described["pid"])
        started = _started(pid)
        if started is None and _is_hidden(pid):
            return False
        return bool(started != described["started"])
    except (ValueError, KeyError, TypeError):
        return False


def _started(pid: int) -> str | None:
    """Return when a process started, which differs for a later one with the same id."""
    try:
        # After the name, which may contain anything: the state, and 19 fields later, the start.
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else fields[19]


def _is_hidden(pid: int) -> bool:
    """Return whether a process of this id may exist that /proc does not show to us."""
    if (_PROC / str(pid) / "stat").exists():
        return False  # it is shown, as one that has ended
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


def boottime() -> float:
    """Return the seconds of a monotonic clock that also runs while this machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def own_pool(channel: Any, timeout: float) -> ConnectionPool:
    """Return a pool with a channel's own settings, but a timeout, in seconds, and no retries."""
    pool = channel.pool
    options = {**pool.connection_kwargs, "socket_timeout": timeout, "health_check_interval": 0}
    if "socket_connect_timeout" in options:
        options["socket_connect_timeout"] = timeout
    options.pop("retry_on_timeout", None)
    options["retry"] = Retry(NoBackoff(), 0)  # the callers repeat their commands themselves
    connection_class = type("OwnConnection", (_ConnectsWithoutFork, pool.connection_class), {})
    return ConnectionPool(connection_class=connection_class, **options)


class _ConnectsWithoutFork:
    """A connection for threads: no pool process is forked while it connects."""

    def _connect(self) -> Any:
        with forks_delayed():
            return super()._connect()  # type: ignore[misc]
