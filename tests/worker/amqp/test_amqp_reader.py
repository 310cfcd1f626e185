"""Frames of RabbitMQ, read together from a socket."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from struct import pack
from types import SimpleNamespace
from typing import Any

import pytest
from amqp.exceptions import UnexpectedFrame
from amqp.transport import TCPTransport

from celery_batch.worker.amqp.reader import read_together


class Scheduler:
    """Counts how often it is asked whether batches may leave."""

    pumps = 0

    @contextmanager
    def adding_many(self) -> Iterator[None]:
        """As of the worker's lanes."""
        yield
        self.pumps += 1


@pytest.fixture
def line() -> Iterator[Any]:
    """A connection that records its frames, and the broker's end."""
    here, there = socket.socketpair()
    transport = TCPTransport("nowhere")
    transport.sock, transport.connected = here, True
    transport._setup_transport()
    heard: list[Any] = []
    waited: list[Any] = []

    def wait(timeout: float | None) -> None:
        waited.append(timeout)

    connection = SimpleNamespace(
        transport=transport,
        on_inbound_frame=lambda frame: heard.append(frame) or frame[0] == 3,
        drain_events=wait,
    )
    scheduler = Scheduler()
    read_together(connection, scheduler)  # type: ignore[arg-type]
    with here, there:
        yield SimpleNamespace(
            drain=connection.drain_events,
            connection=connection,
            heard=heard,
            waited=waited,
            broker=there,
            scheduler=scheduler,
        )


def frame(kind: int, content: bytes, end: bytes = b"\xce") -> bytes:
    """Return a frame of channel 1."""
    return pack(">BHI", kind, 1, len(content)) + content + end


def test_all_that_has_come_is_heard_at_once(line: Any):
    """Many messages are handled in one call, and batches leave after the last."""
    line.broker.sendall(b"".join(frame(kind, b"x") for _ in range(5) for kind in (1, 2, 3)))
    with pytest.raises(TimeoutError):
        line.drain(timeout=0)

    assert [(kind, 1, b"x") for _ in range(5) for kind in (1, 2, 3)] == line.heard
    assert 1 == line.scheduler.pumps


def test_event_loop_comes_by_now_and_then(line: Any):
    """However much has come, a call handles so much and returns."""
    line.broker.sendall(frame(3, b"x") * 200)
    line.drain(timeout=0)

    assert 64 == len(line.heard)


def test_frames_may_come_in_parts(line: Any):
    """A frame that is cut anywhere waits for its rest."""
    whole = frame(1, b"method") + frame(3, b"body" * 10_000)
    for start in range(0, len(whole), 4_001):
        line.broker.sendall(whole[start : start + 4_001])
        with pytest.raises(TimeoutError):
            line.drain(timeout=0)

    assert [(1, 1, b"method"), (3, 1, b"body" * 10_000)] == line.heard


def test_what_is_left_is_py_amqps_to_read(line: Any):
    """A handler that waits for a reply reads on from the same place."""
    line.broker.sendall(frame(3, b"a") + frame(3, b"b") + frame(3, b"c"))
    between: list[Any] = []

    def read_on(message: Any) -> bool:
        line.heard.append(message)
        if message[2] == b"a":
            between.append(line.connection.transport.read_frame())
            line.drain(timeout=0)
        return True

    line.connection.on_inbound_frame = read_on
    with pytest.raises(TimeoutError):
        line.drain(timeout=0)

    assert [(3, 1, b"b")] == between
    assert [(3, 1, b"a"), (3, 1, b"c")] == line.heard
    assert [0] == line.waited


def test_who_can_wait_does_so_in_py_amqps_way(line: Any):
    """Only an event loop's reads are ours."""
    line.drain(timeout=5)
    line.drain()

    assert [5, None] == line.waited


def test_a_closed_connection_is_an_error(line: Any):
    """What has come is heard, and then that no more will."""
    line.broker.sendall(frame(3, b"last"))
    line.broker.close()
    with pytest.raises(OSError, match="closed connection"):
        line.drain(timeout=0)

    assert [(3, 1, b"last")] == line.heard
    assert not line.connection.transport.connected


def test_a_frame_without_its_end_is_an_error(line: Any):
    """Py-amqp says so."""
    line.broker.sendall(frame(3, b"x", end=b"!"))
    with pytest.raises(UnexpectedFrame):
        line.drain(timeout=0)
