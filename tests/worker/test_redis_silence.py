"""Connections to a Redis that does not answer, broken off."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import pytest
from celery.utils.functional import noop

from celery_batch.worker.redis import silence

WHERE = {"host": "silent", "port": 6379}


class Connection:
    """A connection to Redis, as far as it is looked at."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.host, self.port = WHERE.values()


class Growing(WeakSet[Any]):
    """A set that another thread adds to in the midst of the first look at it."""

    has_grown = False

    def __iter__(self) -> Iterator[Any]:
        if not self.has_grown:
            self.has_grown = True
            raise RuntimeError("Set changed size during iteration")
        return super().__iter__()


def test_a_connection_that_is_made_meanwhile_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease's thread, which breaks them off, goes on; and all of them are."""
    monkeypatch.setattr(silence, "_connections", connections := Growing())
    monkeypatch.setattr(silence, "_silences", [])
    client = SimpleNamespace(connection_pool=SimpleNamespace(connection_kwargs=WHERE))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = Connection(ours)
        connections.add(connection)
        silence.break_off(client, noop)

        assert theirs.recv(1) == b""
