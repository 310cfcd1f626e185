"""Answers in a real Redis: found while they are valid, and never at the cost of a batch."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from threading import Timer
from typing import Any

import psutil
import pytest
from celery import Celery

from celery_batch.processes.redis_server import RedisServer
from celery_batch.worker.redis import answer_cache
from celery_batch.worker.redis.answer_cache import LARGEST_ANSWER, AnswerCache, Found, cache_backend
from tests.services.shared_setup import eventually

ONE, TWO = b"1" * 24, b"2" * 24


#: The product's, which `patient` replaces.
TIMEOUTS = answer_cache._TIMEOUT, answer_cache._CONNECT_TIMEOUT


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for replies on a busy machine, where Redis may get no processor for 50 ms."""
    wait(monkeypatch, 30.0)


def wait(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let caches that are made from now on wait so long for a reply."""
    monkeypatch.setattr(answer_cache, "_TIMEOUT", seconds)
    monkeypatch.setattr(answer_cache, "_CONNECT_TIMEOUT", seconds)


@pytest.fixture(scope="module")
def own_redis() -> Iterator[RedisServer]:
    """A Redis that these tests may stop."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def backend(own_redis: RedisServer) -> Iterator[Any]:
    """The result backend of an app on it, which is empty."""
    with Celery("cache", backend=own_redis.url) as app:
        app.backend.client.flushall()
        yield app.backend


def cache_of(backend: Any, task: str = "cache.task", ttl: float = 60) -> AnswerCache:
    """Return the cache of a task, as each process has its own."""
    return AnswerCache(task, ttl, backend)


def remember(cache: AnswerCache, *answers: tuple[bytes, Any]) -> None:
    """Store answers that were looked up first."""
    cache.store(cache.look_up([digest for digest, _ in answers]).epoch, answers)


def test_a_new_epoch_ends_what_is_stored_and_what_is_computed(backend: Any):
    """For all processes: what a batch computed with the old weights is not found later."""
    old, other = cache_of(backend), cache_of(backend)
    remember(old, (ONE, "old"))
    running = old.look_up([TWO])
    other.clear()
    old.store(running.epoch, [(TWO, "old")])

    assert {} == old.look_up([ONE, TWO]).answers
    remember(other, (ONE, "new"))
    assert {ONE: "new"} == old.look_up([ONE, TWO]).answers


def test_without_an_epoch_no_answer_is_valid(backend: Any):
    """The key that names it was evicted at once, or somebody has emptied it."""
    cache = cache_of(backend)
    remember(cache, (ONE, "old"))
    backend.client.set("celery-batch-cache-epoch-cache.task", b"")

    assert Found({}, b"") == cache.look_up([ONE])


def test_another_task_keeps_its_epoch(backend: Any):
    """A reload empties the cache of the tasks of its model."""
    remember(cache_of(backend, "cache.other"), (ONE, "kept"))
    cache_of(backend).clear()

    assert {ONE: "kept"} == cache_of(backend, "cache.other").look_up([ONE]).answers


def test_an_evicted_epoch_makes_all_answers_invalid(backend: Any):
    """A number that began again would make old answers valid."""
    cache = cache_of(backend)
    remember(cache, (ONE, "old"))
    backend.client.delete("celery-batch-cache-epoch-cache.task")

    assert {} == cache.look_up([ONE]).answers


def test_outputs_that_cannot_be_kept_are_left_out(backend: Any, caplog: pytest.LogCaptureFixture):
    """The log says so once."""
    cache = cache_of(backend)
    with caplog.at_level(logging.WARNING):
        remember(cache, (ONE, object()), (TWO, "x" * LARGEST_ANSWER))
        remember(cache, (ONE, object()), (TWO, "fine"))

    assert {TWO: "fine"} == cache.look_up([ONE, TWO]).answers
    assert ["cache.task: an output cannot be cached: a builtins.object is not plain"] == (
        caplog.messages
    )


def test_what_is_no_answer_is_none(backend: Any):
    """Whoever has written it."""
    cache = cache_of(backend)
    epoch = cache.look_up([ONE]).epoch
    key = b"celery-batch-cache-" + ONE.hex().encode()
    for value in (b"", b"\0", epoch, epoch + b"l\xff\xff\xff\xff", epoch + b"cos\nsystem"):
        backend.client.set(key, value)

        assert {} == cache.look_up([ONE]).answers


def test_many_rows_are_looked_up_in_pieces(backend: Any):
    """A chunk may have more rows than one command should name."""
    cache = cache_of(backend)
    digests = [b"%024d" % number for number in range(2500)]
    remember(cache, *((each, number) for number, each in enumerate(digests)))

    assert dict(zip(digests, range(2500), strict=True)) == cache.look_up(digests).answers


def test_a_reload_without_redis_is_made_up_for(
    backend: Any, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
):
    """Old answers are not used: the first lookup afterwards begins the new epoch."""
    wait(monkeypatch, 0.5)
    cache = cache_of(backend)
    remember(cache, (ONE, "old"))
    (process,) = psutil.Process(own_redis.child.pid).children()
    process.suspend()
    try:
        cache.clear()
    finally:
        process.resume()

    def renewed() -> dict[bytes, Any]:
        remember(cache, (ONE, "new"))
        return cache.look_up([ONE]).answers

    assert {} == cache.look_up([ONE]).answers
    assert {ONE: "new"} == eventually(renewed, "an answer in time")


def test_a_closed_connection_is_made_again(backend: Any):
    """A firewall may have dropped it; that is no outage."""
    cache = cache_of(backend)
    remember(cache, (ONE, "kept"))
    backend.client.client_kill_filter(_type="normal", skipme=True)

    assert {ONE: "kept"} == cache.look_up([ONE]).answers


def test_the_url_says_how_long_to_wait(own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch):
    """A reply that would be late without it is in time."""
    wait(monkeypatch, 0.05)
    with Celery("patient", backend="cache+memory://") as app:
        app.conf.batch_cache_url = f"{own_redis.url}&socket_timeout=10"
        cache = cache_of(cache_backend(app, "patient.task"), "patient.task")
        remember(cache, (ONE, "kept"))
        (process,) = psutil.Process(own_redis.child.pid).children()
        process.suspend()
        Timer(0.5, process.resume).start()

        assert {ONE: "kept"} == cache.look_up([ONE]).answers


def test_keys_have_the_apps_prefix(own_redis: RedisServer):
    """As its results do, so that one user of Redis may have both."""
    with Celery("prefixed", backend=own_redis.url) as app:
        app.conf.result_backend_transport_options = {"global_keyprefix": "mine:"}
        app.backend.client.flushall()
        remember(cache_of(app.backend), (ONE, "kept"))
        keys = app.backend.client.keys()

    assert 2 == len(keys)
    assert all(key.startswith(b"mine:celery-batch-cache-") for key in keys)


def test_the_cache_may_have_a_redis_of_its_own(own_redis: RedisServer):
    """Named as result backends are."""
    with Celery("own", backend="cache+memory://") as app:
        app.conf.batch_cache_url = f"{own_redis.url}"
        caches = [cache_of(cache_backend(app, "own.task"), "own.task") for _ in range(2)]
        remember(caches[0], (ONE, "kept"))

        assert {ONE: "kept"} == caches[1].look_up([ONE]).answers


def test_time_outs_are_far_below_a_batch():
    """What a batch may lose to a cache that is away is bounded by them."""
    reply, connection = TIMEOUTS

    assert reply <= 0.05
    assert connection <= 0.2
