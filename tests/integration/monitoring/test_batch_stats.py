"""A real worker's statistics of its batches, and its log."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from celery.exceptions import TaskRevokedError

from celery_batch.errors import PoisonItem
from celery_batch.processes.redis_server import RedisServer
from tests.services.setup import Setup, Worker, emptied, open_setup


@pytest.fixture(scope="module")
def setup(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    """The tests' app; its workers stay for all tests of this module."""
    with open_setup(emptied(redis_server), tmp_path_factory.mktemp("stats")) as setup:
        yield setup


@pytest.fixture(scope="module")
def worker(setup: Setup) -> Worker:
    """A worker with successes, failures and retries."""
    worker = setup.worker("-c", "1")
    results = [setup.double.delay(n) for n in range(40)]
    assert [2 * n for n in range(40)] == [result.get(timeout=30) for result in results]
    for result in [setup.odd.delay(word) for word in ("good", "bad", "fine")]:
        result.get(timeout=30, propagate=False)
    setup.flaky.delay(1).get(timeout=30)
    worker.counted("shop.double", succeeded=40)
    worker.counted("shop.odd", succeeded=2, failed=1)
    worker.counted("shop.flaky", succeeded=1)
    return worker


def test_every_request_is_in_the_numbers(worker: Worker):
    """Requests, sizes and outcomes add up to the sent requests."""
    stats = worker.ask("batch_stats")["tasks"]["shop.double"]

    assert 40 == stats["requests"] == stats["rows"] == stats["outcomes"]["succeeded"]
    assert 40 == sum(rows for _, rows in stats["sizes"].values())
    assert stats["batches"] == stats["ended"] == sum(stats["reasons"].values())
    assert 40 / stats["batches"] / 16 == pytest.approx(stats["fill"], abs=1e-5)
    assert (0, 0, 0) == (stats["waiting"], stats["running"], stats["oldest_age"])


def test_times_are_in_order(worker: Worker):
    """Quantiles of waits and model times are in order, and the model ran for a part of the time."""
    everything = worker.ask("batch_stats")
    stats = everything["tasks"]["shop.double"]
    wait, model = stats["wait"], stats["model"]

    assert 0 < wait["p50"] <= wait["p95"] <= wait["p99"]
    assert 0 < model["p50"] <= model["p95"] <= model["p99"]
    assert 0 < model["seconds"] < everything["seconds"]
    assert 0 < everything["device_idle_seconds"] < everything["seconds"]
    assert 0 < everything["device_idle_share"] <= 1


def test_failures_and_retries_are_counted_separately(worker: Worker):
    """Failures, retries and successes of one batch are counted separately."""
    tasks = worker.ask("batch_stats")["tasks"]

    assert 2 == tasks["shop.odd"]["outcomes"]["succeeded"]
    assert 1 <= tasks["shop.odd"]["outcomes"]["failed"]
    assert {"retried": 1, "succeeded": 1} == tasks["shop.flaky"]["outcomes"]
    none = dict.fromkeys(("isolated", "split", "out_of_memory", "poison"), 0)
    assert none == tasks["shop.double"]["trouble"]


def test_expired_and_revoked_requests_are_counted(worker: Worker, setup: Setup):
    """Expired and revoked requests are outcomes of their own."""
    late = setup.slow.apply_async((2,), expires=datetime(2020, 1, 1, tzinfo=UTC))
    gone = setup.slow.apply_async((3,), countdown=3600)
    gone.revoke()
    with pytest.raises(TaskRevokedError):
        late.get(timeout=30)
    gone.revoke(terminate=True)

    worker.counted("shop.slow", expired=1, revoked=1)


def test_item_that_takes_processes_down_is_counted(worker: Worker, setup: Setup):
    """Lost processes are counted, and in the end the item that killed them."""
    with pytest.raises(PoisonItem):
        setup.odd.delay("exit").get(timeout=60)
    worker.counted("shop.odd", failed=2, again=1)
    trouble = worker.ask("batch_stats")["tasks"]["shop.odd"]["trouble"]

    assert (2, 1) == (trouble["lost"], trouble["poison"])


def test_stats_are_plain_data_and_in_celery_stats(worker: Worker):
    """``inspect stats``, which Flower shows, has the same numbers."""
    stats = worker.ask("batch_stats")
    shown = worker.stats()["batches"]["shop.double"]

    assert stats == json.loads(json.dumps(stats))
    assert stats["tasks"]["shop.double"] == shown


def test_every_entry_is_in_the_reference(worker: Worker):
    """The page of control commands names all entries of both replies, and which one lacks some."""
    text = (Path(__file__).parents[3] / "docs" / "reference" / "control-commands.md").read_text()
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (.*) \|$", text, re.MULTILINE)
    entries = {name: told for names, told in rows for name in re.findall(r"\w+", names)}
    stats, status = worker.ask("batch_stats"), worker.ask("batch_status")
    of_stats = {name for task in stats["tasks"].values() for name in task}
    of_status = {name for task in status.values() for name in task}

    assert set() == (stats.keys() | of_stats | of_status) - entries.keys()
    assert of_stats - of_status == {
        name for name, told in entries.items() if told.startswith("`batch_stats` alone")
    }


def test_batch_is_a_line_in_the_log(worker: Worker):
    """At INFO the log has a line for each batch, and none for each item beside Celery's."""
    lines = [line for line in worker.log.splitlines() if "shop.double: batch of" in line]

    assert worker.ask("batch_stats")["tasks"]["shop.double"]["batches"] == len(lines)
    assert re.search(r"waited \d+\.\d+ s", lines[0])
    assert not [line for line in worker.log.splitlines() if "]: waited" in line]
