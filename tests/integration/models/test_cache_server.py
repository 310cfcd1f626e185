"""The cache of a worker: emptied by a reload, shared by workers, and never missed when away."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from celery_batch.processes.redis_server import RedisServer
from tests.apps.memory import patient_cache
from tests.services.setup import Setup, Worker, open_setup
from tests.services.shared_setup import SOON, batch_info, eventually

MODULE = "tests.apps.caching"

POOLS = [("-c", "1"), ("-c", "2"), ("-P", "solo"), ("-P", "threads", "-c", "2")]


@pytest.fixture
def cache_server() -> Iterator[RedisServer]:
    """A Redis that keeps answers, and nothing else."""
    with RedisServer() as server:
        yield server


open_caching = partial(open_setup, module=MODULE)


@pytest.fixture
def caching(broker: str, tmp_path: Path) -> Iterator[Setup]:
    """The app on an empty Redis, which keeps its answers as well."""
    with open_caching(broker, tmp_path) as setup:
        yield setup


@pytest.fixture(params=["redis", "rabbitmq"])
def each_caching(request: pytest.FixtureRequest, broker: str, tmp_path: Path) -> Iterator[Setup]:
    """The app on each of the brokers in turn."""
    url = broker
    if request.param == "rabbitmq":
        url = request.getfixturevalue("rabbitmq_server").url
    with open_caching(url, tmp_path, backend=broker) as setup:
        yield setup


def ask(setup: Setup, *items: Any) -> tuple[list[Any], int]:
    """Return the answers to items, and how many of them came from the cache."""
    results = setup.weighed.delay_many(items)
    answers = [result.get(timeout=SOON) for result in results]
    return answers, sum(batch_info(result).cached for result in results)


def await_hits(setup: Setup, *items: Any) -> None:
    """Return when all of them are in the cache."""
    eventually(lambda: ask(setup, *items)[1] == len(items), "hits")


def has_hit(setup: Setup, text: str) -> bool:
    """Say whether the cost of a text comes from the cache."""
    result = setup.tokens.delay(text)
    assert len(text) == result.get(timeout=SOON)
    return bool(batch_info(result).cached)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("pool", POOLS, ids="".join)
def test_a_reload_empties_the_cache(
    caching: Setup, tmp_path: Path, pool: tuple[str, ...], *, in_place: bool
):
    """After its reply no answer is one of the old weights, in whichever process."""
    weights = tmp_path / "weights"
    weights.write_text("old")
    worker = caching.worker(*pool, CACHING_WEIGHTS=str(weights))
    items = [*range(16)]
    before = ask(caching, *items)
    await_hits(caching, *items)
    weights.write_text("new")
    reply = worker.ask("batch_reload", task="caching.weighed", wait=SOON, in_place=in_place)
    after = ask(caching, *items)

    assert ([[each, "old"] for each in items], 0) == before
    assert "done" == reply["ok"]["state"]
    assert ([[each, "new"] for each in items], 0) == after
    await_hits(caching, *items)


def test_workers_of_one_version_share_their_answers(caching: Setup):
    """Another version of the model has its own."""
    first = caching.worker("-c", "1", CACHING_VERSION="1")
    await_hits(caching, 1, 2, 3)
    first.stop()
    second = caching.worker("-c", "1", CACHING_VERSION="1")
    same = ask(caching, 1, 2, 3)
    second.stop()
    caching.worker("-c", "1", CACHING_VERSION="2")

    assert 3 == same[1]
    assert 0 == ask(caching, 1, 2, 3)[1]


def test_cached_rows_cost_nothing(caching: Setup):
    """The calls of a batch are planned for the rows that run."""
    caching.worker("-c", "1")
    texts = ["x" * length for length in (9, 2, 3, 8)]
    for text in (texts[0], texts[3]):  # an answer may be kept a moment after it is there
        eventually(lambda text=text: has_hit(caching, text), "a hit")
    results = caching.tokens.delay_rows(texts)

    assert [9, 2, 3, 8] == results.get(timeout=SOON)
    assert [2, 3] == sorted(caching.recall("tokens")[-1]["items"])
    assert (2, 2) == (batch_info(results).size, batch_info(results).cached)


@contextmanager
def frozen(server: RedisServer) -> Iterator[None]:
    """Stop a Redis, which keeps its connections open."""
    (process,) = psutil.Process(server.child.pid).children()
    process.suspend()
    try:
        yield
    finally:
        process.resume()


def warnings(worker: Worker, text: str) -> int:
    """Return how often the worker's log has said so."""
    return len(re.findall(text, worker.log))


def test_a_cache_that_stops_answering_fails_and_delays_no_batch(
    each_caching: Setup, cache_server: RedisServer
):
    """Every row is computed meanwhile; the log says so once, and the cache is used again later."""
    setup = each_caching
    # By default a reply that takes 50 ms is late, as it may be on a busy machine.
    conf = {"batch_cache_url": f"{cache_server.url}&socket_timeout=2"}
    worker = setup.worker("-c", "1", conf=conf)
    await_hits(setup, *range(8))
    with frozen(cache_server):
        began = time.monotonic()
        during = [ask(setup, *range(8)) for _ in range(50)]
        seconds = time.monotonic() - began
        said = warnings(worker, "The cache of caching.weighed is not used for now")
    await_hits(setup, *range(8))

    assert [([[each, "none"] for each in range(8)], 0)] * 50 == during
    assert seconds < 30
    assert 1 == said == warnings(worker, "not used for now")
    assert 1 == warnings(worker, "The cache of caching.weighed is used again")


def test_a_cache_that_dies_fails_no_batch(caching: Setup, cache_server: RedisServer):
    """Requests of a run in which it dies are all answered."""
    conf = {"batch_cache_url": patient_cache(cache_server.url)}
    worker = caching.worker("-c", "2", conf=conf)
    await_hits(caching, 1)
    results = []
    for number in range(400):
        results.append(caching.weighed.delay(number % 50))
        if number == 200:
            cache_server.child.stop(grace=0)

    assert [[number % 50, "none"] for number in range(400)] == [
        each.get(timeout=SOON) for each in results
    ]
    assert 1 <= warnings(worker, "is not used for now") <= 2


def test_a_worker_without_a_redis_for_answers_does_not_start(broker: str, tmp_path: Path):
    """It says which setting is missing."""
    with open_caching(broker, tmp_path, backend="cache+memory://", memory=broker) as setup:
        worker = setup.launch("-c", "1")
        has_ended = worker.child.wait(60)

    assert has_ended
    assert 0 != worker.child.exit_code
    assert (
        "Error: caching.tokens.cache_ttl: answers are kept in Redis, and the result backend is"
        " memory:///; set batch_cache_url" in worker.log
    )
