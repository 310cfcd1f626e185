"""Held messages are leased: none runs twice while its worker lives, none waits for a dead one."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import psutil
import pytest

from celery_batch.processes.managed_process import wait_until
from tests.conftest import Shop, Worker
from tests.services.memory import remember
from tests.services.place import eventually

#: Kombu gives back what nobody refreshed for a second, and looks every second.
HASTY = {
    "visibility_timeout": 1,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
}


def kill(worker: Worker) -> None:
    """End a worker and its pool at once, as a container is killed."""
    main = psutil.Process(worker.pid)
    for process in (main, *main.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    worker.child.wait(60)


def await_runs(shop: Shop, kind: str, batches: int) -> None:
    """Return when so many batches have been started."""
    wait_until(
        lambda: "" if len(shop.recall(kind)) >= batches else "not yet",
        [],
        what=f"{batches} batches",
        timeout=60,
    )


def await_formed(worker: Worker, task: str, batches: int) -> None:
    """Return when a worker has formed so many batches of a task."""

    def missing() -> str:
        formed = worker.ask("batch_stats")["tasks"][task].get("batches", 0)
        return "" if formed >= batches else f"formed {formed}"

    wait_until(missing, [worker.child], what=f"{batches} batches", timeout=60)


def runs(shop: Shop, kind: str) -> Counter[Any]:
    """Count how often each item was run."""
    return Counter(item for fact in shop.recall(kind) for item in fact["items"])


def books(shop: Shop) -> set[str]:
    """Return the keys in Redis that tell who holds what."""
    client = shop.memory()
    keys = {key.decode() for key in client.keys("*unacked*")}
    client.close()
    return keys


def queued(shop: Shop, key: str = "celery") -> list[dict[str, Any]]:
    """Return the headers of the messages that wait in a queue."""
    client = shop.memory()
    messages = [json.loads(each)["headers"] for each in client.lrange(key, 0, -1)]
    client.close()
    return messages


def answers(results: Iterable[Any]) -> list[Any]:
    """Wait for every result."""
    return [result.get(timeout=60) for result in results]


@pytest.mark.parametrize("pool", [("-c", "1"), ("-P", "solo")], ids=" ".join)
def test_short_visibility_timeout_runs_nothing_twice(shop: Shop, pool: tuple[str, ...]):
    """Messages that wait and run for longer than it are refreshed, though a neighbour sweeps."""
    for _ in range(2):
        shop.worker(*pool, conf={"broker_transport_options": HASTY})
    results = [shop.nap.delay(n) for n in range(32)]

    assert list(range(32)) == answers(results)
    assert {1} == set(runs(shop, "nap").values())


def test_a_stock_worker_beside_ours_takes_nothing_away(shop: Shop):
    """Kombu's own sweep, by its own clock, finds what we hold refreshed in time."""
    stock = {"broker_transport_options": HASTY, "batch_bulk": False}
    shop.worker("-c", "1", "-Q", "elsewhere", conf=stock)
    shop.worker("-c", "1", conf={"broker_transport_options": HASTY})
    results = [shop.nap.delay(n) for n in range(16)]

    assert list(range(16)) == answers(results)
    assert {1} == set(runs(shop, "nap").values())


def test_another_worker_runs_what_a_killed_one_held(shop: Shop):
    """Within seconds, and only what the killed worker was running can have run twice."""
    killed = shop.worker("-c", "1")
    shop.worker("-c", "1")
    results = [shop.nap.delay(n) for n in range(24)]
    await_runs(shop, "nap", 2)
    kill(killed)

    assert list(range(24)) == answers(results)
    assert sum(runs(shop, "nap").values()) <= 24 + 4


def test_a_killed_worker_that_searched_for_others_is_found_itself(shop: Shop):
    """Long before its lease is over: its neighbours see that it has ended, and one takes over."""
    conf = {"batch_lease": 600.0}
    workers = {worker.name: worker for worker in (shop.worker("-c", "1", conf=conf) for _ in "123")}
    with shop.memory() as client:
        (key,) = client.keys("unacked_sweeper_on.*")
        killed = workers[json.loads(client.get(key).partition(b" ")[2])["node"]]
    results = [shop.nap.delay(n) for n in range(24)]
    await_formed(killed, "shop.nap", 1)
    kill(killed)

    assert list(range(24)) == answers(results)
    assert sum(runs(shop, "nap").values()) <= 24 + 4


def test_a_restarted_worker_runs_what_it_held(shop: Shop):
    """A worker that takes the place of the killed one finds its record."""
    killed = shop.worker("-c", "1")
    results = [shop.nap.delay(n) for n in range(12)]
    await_runs(shop, "nap", 1)
    kill(killed)
    held = books(shop)
    second = shop.worker("-c", "1")

    assert "unacked" in held
    assert list(range(12)) == answers(results)
    assert 0 == second.stop()
    assert set() == books(shop)


def test_losses_are_counted_for_what_ran(shop: Shop):
    """The batch that ran in a killed worker comes back marked, the others unmarked."""
    killed = shop.worker("-c", "1", SHOP_NAP_SECONDS="60")
    for n in range(10):
        shop.nap.delay(n)
    await_runs(shop, "nap", 1)
    client = shop.memory()
    (owner,) = client.zrange("unacked_due", 0, -1)
    wait_until(
        lambda: "" if b"1" in client.hvals(b"unacked_held." + owner) else "not marked",
        [killed.child],
        what="the mark",
        timeout=10,
    )
    client.close()
    kill(killed)
    shop.worker("-c", "1", "-Q", "elsewhere")
    wait_until(lambda: "" if len(queued(shop)) == 10 else "not back", [], what="rescue", timeout=20)
    losses = Counter(header.get("batch_losses", 0) for header in queued(shop))
    (ran,) = (len(fact["items"]) for fact in shop.recall("nap"))

    assert {1: ran, 0: 10 - ran} == losses
    assert all(header["redelivered"] for header in queued(shop))


@pytest.mark.parametrize("pool", [("-c", "1"), ("-P", "solo")], ids=" ".join)
def test_a_message_that_nobody_has_read_yet_is_not_lost(shop: Shop, pool: tuple[str, ...]):
    """A worker that dies between the arrival of a message and its next step takes none along."""
    killed = shop.worker(*pool)
    psutil.Process(killed.pid).suspend()
    result = shop.double.delay(4)
    kill(killed)
    shop.worker("-c", "1")

    assert 8 == result.get(timeout=30)


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGQUIT])
def test_a_planned_stop_leaves_no_record_and_no_losses(shop: Shop, sign: signal.Signals):
    """What did not run is in the queue again, as it came."""
    worker = shop.worker("-c", "1")
    for n in range(20):
        shop.nap.delay(n)
    await_runs(shop, "nap", 1)
    os.kill(worker.pid, sign)
    worker.child.wait(60)

    assert set() == books(shop)
    assert 20 - len(queued(shop)) <= 8
    assert not [header for header in queued(shop) if "batch_losses" in header]


def test_a_key_prefix_is_kept_in_the_books(shop: Shop):
    """Every key of ours carries the prefix, and another worker finds them by it."""
    options = {"global_keyprefix": "shop-"}
    shop.app.conf.broker_transport_options = options
    killed = shop.worker("-c", "1", conf={"broker_transport_options": options})
    results = [shop.nap.delay(n) for n in range(12)]
    await_runs(shop, "nap", 1)
    keys = books(shop)
    kill(killed)
    shop.worker("-c", "1", conf={"broker_transport_options": options})

    assert {True} == {key.startswith("shop-unacked") for key in keys}
    assert list(range(12)) == answers(results)


def test_a_worker_that_was_stopped_for_longer_than_its_lease_lets_go(shop: Shop):
    """What others have taken meanwhile it does not run as well, and it goes on serving."""
    conf = {"batch_lease": 1.0}
    stopped = shop.worker("-c", "1", conf=conf)
    results = [shop.nap.delay(n) for n in range(12)]
    await_runs(shop, "nap", 1)
    process = psutil.Process(stopped.pid)
    process.suspend()
    shop.worker("-c", "1", conf=conf)
    values = answers(results)
    process.resume()
    later = [shop.nap.delay(n) for n in range(12, 24)]

    assert list(range(12)) == values
    assert list(range(12, 24)) == answers(later)
    # The pool had been given two batches; the third was waiting in the worker.
    assert {1} == {runs(shop, "nap")[n] for n in range(8, 12)}
    assert stopped.child.exit_code is None


def test_a_batch_that_waits_for_its_process_is_let_go_too(shop: Shop):
    """What others have taken is not run as well because it was formed before."""
    conf = {"batch_lease": 1.0}
    stopped = shop.worker("-c", "1", conf=conf)
    shop.doze.delay()
    await_runs(shop, "doze", 1)
    results = [shop.nap.delay(n) for n in range(8)]
    await_formed(stopped, "shop.nap", 2)
    process = psutil.Process(stopped.pid)
    process.suspend()
    other = shop.worker("-c", "1", conf=conf)
    values = answers(results)
    other.stop()
    process.resume()
    remember("wake")
    later = [shop.nap.delay(n) for n in range(8, 12)]

    assert list(range(8)) == values
    assert list(range(8, 12)) == answers(later)
    assert dict.fromkeys(range(12), 1) == runs(shop, "nap")


def test_every_connection_cut_under_load_loses_nothing(shop: Shop):
    """Again and again: the worker comes back, and acknowledges what it has done."""
    worker = shop.worker("-c", "1")
    results = [shop.slow.delay(n) for n in range(200)]
    client = shop.memory()
    for batches in (3, 8, 13):
        await_runs(shop, "slow", batches)
        client.client_kill_filter(_type="normal", skipme=True)
    client.close()

    assert list(range(200)) == answers(results)
    assert worker.child.exit_code is None
    assert "Unrecoverable" not in worker.log
    assert 0 == worker.stop()
    # A lease whose connections were cut as it ended keeps its role until that expires, in 3 s.
    eventually(lambda: not books(shop), "the end of all records")


def test_a_right_that_is_lost_while_a_worker_runs(shop: Shop):
    """Messages are still found, and one line of the log says why that takes longer."""
    client = shop.memory()
    worker = shop.worker("-c", "1")
    shop.double.delay(1).get(timeout=60)
    client.execute_command("ACL", "SETUSER", "default", "-blmove")
    try:
        values = [shop.double.delay(2).get(timeout=60)]
        eventually(lambda: "Redis does not allow BLMOVE (" in worker.log, "the warning", timeout=60)
        time.sleep(2.5)
        values.append(shop.double.delay(3).get(timeout=60))
    finally:
        client.execute_command("ACL", "SETUSER", "default", "+@all")
        client.close()

    assert [4, 6] == values
    assert 1 == worker.log.count("Redis does not allow BLMOVE (")


@pytest.mark.parametrize("command", ["blmove", "rpop", "lindex"])
def test_a_redis_without_a_command_is_read_as_by_stock_celery(shop: Shop, command: str):
    """Messages are then read singly, whatever their tasks; the lease on them stays."""
    client = shop.memory()
    client.execute_command("ACL", "SETUSER", "default", f"-{command}")
    try:
        worker = shop.worker("-c", "1")
        results = [shop.nap.delay(n) for n in range(6)]
        await_runs(shop, "nap", 1)
        held = {key.partition(".")[0] for key in books(shop)}
        refused = worker.ask("batch_pause", task=shop.nap.name)
        values = answers(results)
        exit_code = worker.stop()
    finally:
        client.execute_command("ACL", "SETUSER", "default", "+@all")
        client.close()

    assert list(range(6)) == values
    assert "this broker would fill the worker with those of paused tasks" in refused["error"]
    assert f"this Redis has no {command.upper()}" in worker.log
    assert {"unacked_held", "unacked_alive", "unacked_owner", "unacked_due"} <= held
    assert 0 == exit_code
    assert set() == books(shop)
