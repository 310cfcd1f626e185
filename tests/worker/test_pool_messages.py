"""The pool is heard out before it forgets what it has not heard."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from celery_batch.compat import pool as pool_words
from celery_batch.compat.pool import listen_before_flush


class Pool:
    """A prefork pool with one job, sent to a process that has not been heard yet."""

    def __init__(self) -> None:
        self.pipe, self.mouth = os.pipe()
        self.alive = True
        process = SimpleNamespace(outqR_fd=self.pipe, pid=1, _is_alive=lambda: self.alive)
        self.job = SimpleNamespace(_write_to=process, _accepted=False, _worker_pid=None)
        self._pool = SimpleNamespace(_cache={1: self.job}, _active_writers=set())
        self.hub = SimpleNamespace(readers={self.pipe: (self.read, ())})
        self.flushed: list[bool] = []

    def flush(self) -> None:
        """Forget what has not been accepted; note whether the job was."""
        self.flushed.append(self.job._accepted)

    def read(self) -> None:
        """Read one word, as the event loop would."""
        self.job._accepted = os.read(self.pipe, 1) == b"y"


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    """A pool that is listened to, for a short while."""
    monkeypatch.setattr(pool_words, "_TIMEOUT", 0.2)
    pool = Pool()
    listen_before_flush(pool, pool.hub)
    yield pool
    os.close(pool.pipe)
    os.close(pool.mouth)


def test_word_in_the_pipe_is_heard(pool: Pool):
    """A job whose acceptance lies unread is accepted before the pool forgets the others."""
    os.write(pool.mouth, b"y")
    pool.flush()

    assert [True] == pool.flushed


def test_message_half_read_is_read_on(pool: Pool):
    """Where the loop has begun to read, its own reader goes on."""

    def reader() -> Iterator[None]:
        yield
        pool.read()
        yield

    half_read = reader()
    next(half_read)
    pool.hub.readers[pool.pipe] = (half_read, ())
    os.write(pool.mouth, b"y")
    pool.flush()

    assert [True] == pool.flushed


@pytest.mark.parametrize("alive", [True, False])
def test_silent_process_is_not_waited_for_long(pool: Pool, alive: bool):  # noqa: FBT001
    """Whoever says nothing, dead or alive, holds up the flush for a moment at most."""
    pool.alive = alive
    pool.flush()

    assert [False] == pool.flushed


def test_job_half_written_is_written_on(pool: Pool):
    """A process that has had half a job will run it, so it gets the rest before it is asked."""

    def write(_: Any, writer: Any) -> None:
        pool._pool._active_writers.discard(writer)
        os.write(pool.mouth, b"y")

    writer = object
    pool.job._writer = lambda: writer
    pool._pool._active_writers.add(writer)
    pool._pool._flush_writer = write
    pool.flush()

    assert [True] == pool.flushed


def test_trouble_with_listening_does_not_keep_the_pool_from_its_work(
    pool: Pool, caplog: pytest.LogCaptureFixture
):
    """Whatever a pool of another make lacks is logged, and it is flushed as ever."""
    del pool._pool._cache
    pool.flush()

    assert [False] == pool.flushed
    assert "Could not hear the pool out" in caplog.text


@pytest.fixture
def behind(pool: Pool) -> SimpleNamespace:
    """A job that lies in the pool's process behind another one that runs."""
    running = SimpleNamespace(_write_to=pool.job._write_to, _accepted=True, _worker_pid=1)
    pool._pool._cache[2] = running
    pool.job.discard = lambda: pool._pool._cache.pop(1)
    return running


@pytest.mark.usefixtures("behind")
def test_job_behind_a_running_one_is_kept(pool: Pool, monkeypatch: pytest.MonkeyPatch):
    """It will run in any case, so the pool must not forget it; and nobody waits for its word."""
    monkeypatch.setattr(pool_words, "_TIMEOUT", 60.0)
    pool.flush()

    assert [True] == pool.flushed  # the pool took it for accepted
    assert not pool.job._accepted
    assert 1 in pool._pool._cache


@pytest.mark.usefixtures("behind")
def test_job_whose_process_dies_meanwhile_is_forgotten(pool: Pool):
    """Nobody would ever put it back: the pool was told that it runs."""
    flush = pool.flush

    def die_while_flushing() -> None:
        pool.alive = False

    pool.flushed = SimpleNamespace(append=lambda _: die_while_flushing())
    flush()

    assert 1 not in pool._pool._cache
