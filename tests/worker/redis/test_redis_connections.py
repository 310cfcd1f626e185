"""Aborting the connections to a Redis that does not answer."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import pytest
from celery.utils.functional import noop

from celery_batch.compat import redis

WHERE = {"host": "silent", "port": 6379}


class Connection:
    """The attributes of a Redis connection that are used."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.host, self.port = WHERE.values()


class Growing(WeakSet[Any]):
    """A set that another thread adds to during the first iteration."""

    has_grown = False

    def __iter__(self) -> Iterator[Any]:
        if not self.has_grown:
            self.has_grown = True
            raise RuntimeError("Set changed size during iteration")
        return super().__iter__()


def test_connecting_meanwhile_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease's thread goes on, and aborts all connections."""
    monkeypatch.setattr(redis, "_connections", connections := Growing())
    monkeypatch.setattr(redis, "_silent", None)
    client = SimpleNamespace(connection_pool=SimpleNamespace(connection_kwargs=WHERE))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = Connection(ours)
        connections.add(connection)
        redis.abort_connections(client, noop)

        assert theirs.recv(1) == b""
