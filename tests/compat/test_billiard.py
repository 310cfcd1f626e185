"""The messages of pool processes are read before the pool is flushed."""

from __future__ import annotations

import fcntl
import os
import pickle
import resource
import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery.concurrency.asynpool import ResultHandler
from celery.utils.functional import noop

from celery_batch.compat import billiard as compat
from celery_batch.compat.billiard import finish_partial_reads, read_before_flush


class Pool:
    """A prefork pool with one job, sent to a process whose messages are unread."""

    def __init__(self) -> None:
        self.pipe, self.writer = os.pipe()
        self.alive = True
        process = SimpleNamespace(
            outqR_fd=self.pipe, inqW_fd=9, pid=1, _is_alive=lambda: self.alive
        )
        self.has_ended = False
        self.job = SimpleNamespace(
            _write_to=process,
            _accepted=False,
            _worker_pid=None,
            ready=lambda: self.has_ended,
        )
        self._pool = SimpleNamespace(_cache={1: self.job}, _active_writers=set(), _busy_workers={9})
        self.hub = SimpleNamespace(readers={self.pipe: (self.read, ())})
        self.flushed: list[bool] = []

    def flush(self) -> None:
        """Discard the job unless it is accepted; note whether it is."""
        self.flushed.append(self.job._accepted)
        if not self.job._accepted:
            getattr(self._pool, "_cache", {}).pop(1, None)

    def read(self) -> None:
        """Read one message, as the event loop would."""
        self.job._accepted = os.read(self.pipe, 1) == b"y"


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    """A pool that is read before it is flushed, with a short timeout."""
    monkeypatch.setattr(compat, "_TIMEOUT", 0.2)
    pool = Pool()
    read_before_flush(pool, pool.hub)
    yield pool
    os.close(pool.pipe)
    os.close(pool.writer)


def test_message_in_the_pipe_is_read(pool: Pool):
    """A job whose acceptance lies unread is accepted before the pool is flushed."""
    os.write(pool.writer, b"y")
    pool.flush()

    assert [True] == pool.flushed


@pytest.mark.parametrize("alive", [True, False])
def test_a_running_job_is_not_forgotten(monkeypatch: pytest.MonkeyPatch, *, alive: bool):
    """Before 5.6 Celery forgets all jobs of an idle pipe, also those whose results will come."""
    pool = Pool()
    pool.alive, inner = alive, pool._pool
    pool.job._accepted = True
    monkeypatch.setattr(pool, "flush", lambda: (inner._cache.clear(), inner._busy_workers.clear()))
    read_before_flush(pool, pool.hub)
    pool.flush()

    assert {1: pool.job} == inner._cache
    assert ({9} if alive else set()) == inner._busy_workers


def test_a_job_that_ends_in_the_flush_stays_away(monkeypatch: pytest.MonkeyPatch):
    """One whose process is found lost meanwhile has its end; kept, a shutdown would wait for it."""
    pool = Pool()
    pool.job._accepted = True

    def flush() -> None:
        """Find the process lost, and end its job."""
        pool.has_ended = True
        pool._pool._cache.clear()

    monkeypatch.setattr(pool, "flush", flush)
    read_before_flush(pool, pool.hub)
    pool.flush()

    assert {} == pool._pool._cache


def test_message_half_read_is_read_on(pool: Pool):
    """Where the event loop has begun to read a message, its own reader goes on."""

    def reader() -> Iterator[None]:
        yield
        pool.read()
        yield

    half_read = reader()
    next(half_read)
    pool.hub.readers[pool.pipe] = (half_read, ())
    os.write(pool.writer, b"y")
    pool.flush()

    assert [True] == pool.flushed


@pytest.mark.parametrize("alive", [True, False])
def test_silent_process_is_not_waited_for_long(pool: Pool, alive: bool):  # noqa: FBT001
    """A process without messages, dead or alive, delays the flush for a moment at most."""
    pool.alive = alive
    pool.flush()

    assert [False] == pool.flushed


def test_job_half_written_is_written_on(pool: Pool):
    """A process with half of a job will run it, so it gets the rest first."""

    def write(_: Any, writer: Any) -> None:
        pool._pool._active_writers.discard(writer)
        os.write(pool.writer, b"y")

    writer = object
    pool.job._writer = lambda: writer
    pool._pool._active_writers.add(writer)
    pool._pool._flush_writer = write
    pool.flush()

    assert [True] == pool.flushed


def test_pool_is_flushed_after_an_error(pool: Pool, caplog: pytest.LogCaptureFixture):
    """An error with an unknown version of billiard is logged, and the pool is flushed."""
    del pool._pool._cache
    pool.flush()

    assert [False] == pool.flushed
    assert "Could not read the pool's messages" in caplog.text


@pytest.fixture
def behind(pool: Pool) -> SimpleNamespace:
    """A job that waits in the pool's process behind a running one."""
    running = SimpleNamespace(
        _write_to=pool.job._write_to, _accepted=True, _worker_pid=1, ready=lambda: False
    )
    pool.job.ready = lambda: False
    pool._pool._cache[2] = running
    return running


@pytest.mark.usefixtures("behind")
def test_job_behind_a_running_one_is_kept(pool: Pool, monkeypatch: pytest.MonkeyPatch):
    """It will run in any case, so the pool must keep it; and the flush does not wait for it."""
    monkeypatch.setattr(compat, "_TIMEOUT", 60.0)
    pool.flush()

    assert [False] == pool.flushed
    assert {1, 2} == pool._pool._cache.keys()


@pytest.mark.usefixtures("behind")
def test_job_is_discarded_if_its_process_dies_meanwhile(pool: Pool):
    """Its message is given back, as that of any job that has not begun."""
    flush = pool.flush

    def die_while_flushing() -> None:
        pool.alive = False

    pool.flushed = SimpleNamespace(append=lambda _: die_while_flushing())
    flush()

    assert 1 not in pool._pool._cache


class Handler:
    """What reads the messages of Celery's pool, in a release without the remedy."""

    def __init__(self) -> None:
        self.handled: list[Any] = []
        self.flushed: list[int] = []

    _recv_message = ResultHandler._recv_message
    handle_event = noop

    def _flush_outqueue(self, pipe: int, _remove: Any, *_details: Any) -> None:
        self.flushed.append(pipe)

    def receive(self, pipe: int) -> None:
        """Read a message, or a part of it, as the event loop does."""
        next(self._recv_message(noop, pipe, self.handled.append), None)


@pytest.fixture
def handler(monkeypatch: pytest.MonkeyPatch) -> Handler:
    """A handler that finishes what it has read in part, with a short timeout."""
    monkeypatch.setattr(compat, "_REST_TIMEOUT", 0.2)
    handler = Handler()
    finish_partial_reads(SimpleNamespace(_pool=SimpleNamespace(_result_handler=handler)))
    return handler


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Both ends of a pipe that blocks nobody."""
    ends = os.pipe()
    os.set_blocking(ends[0], False)
    yield ends
    for end in ends:
        os.close(end)


def test_message_that_was_read_in_part_is_read_to_its_end(handler: Handler, pipe: tuple[int, int]):
    """A pool that stops handles it once, and then reads as before."""
    read, write = pipe
    body = pickle.dumps(("ready", 1))
    message = struct.pack(">i", len(body)) + body
    removed: list[int] = []
    os.write(write, message[:9])
    handler.receive(read)
    os.write(write, message[9:])
    handler._flush_outqueue(read, removed.append, {read: None})

    assert ([("ready", 1)], []) == (handler.handled, handler.flushed)

    os.write(write, message)
    handler.receive(read)
    handler._flush_outqueue(read, removed.append, {read: None})

    assert ([("ready", 1)] * 2, [read], []) == (handler.handled, handler.flushed, removed)


def test_message_without_an_end_is_given_up(handler: Handler, pipe: tuple[int, int]):
    """Its process has stopped in the middle, and is not waited for."""
    read, write = pipe
    removed: list[int] = []
    os.write(write, struct.pack(">i", 100) + b"half")
    handler.receive(read)
    handler._flush_outqueue(read, removed.append, {read: None})

    assert ([read], []) == (removed, handler.handled)


def test_pipe_of_a_process_that_is_gone_is_not_read(handler: Handler, pipe: tuple[int, int]):
    """Its number may be that of another connection by now."""
    read, write = pipe
    os.write(write, struct.pack(">i", 100) + b"half")
    handler.receive(read)
    os.write(write, b"other bytes")
    handler._flush_outqueue(read, noop, {})

    assert ([read], b"other bytes") == (handler.flushed, os.read(read, 20))


def test_message_is_finished_where_many_files_are_open(handler: Handler, pipe: tuple[int, int]):
    """The system call `select` knows the first 1024 descriptors only."""
    read, write = pipe
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    high = fcntl.fcntl(read, fcntl.F_DUPFD, 1100)
    try:
        body = pickle.dumps(("ready", 1))
        os.write(write, struct.pack(">i", len(body)))
        handler.receive(high)
        os.write(write, body)
        handler._flush_outqueue(high, noop, {high: None})
    finally:
        os.close(high)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert [("ready", 1)] == handler.handled
