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
from tests.apps.memory import remember
from tests.conftest import Setup, Worker
from tests.services.shared_setup import eventually

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


def await_runs(setup: Setup, kind: str, batches: int) -> None:
    """Return when so many batches have been started."""
    wait_until(
        lambda: "" if len(setup.recall(kind)) >= batches else "not yet",
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


def runs(setup: Setup, kind: str) -> Counter[Any]:
    """Count how often each item was run."""
    return Counter(item for fact in setup.recall(kind) for item in fact["items"])


def books(setup: Setup) -> set[str]:
    """Return the keys in Redis that tell who holds what."""
    client = setup.memory()
    keys = {key.decode() for key in client.keys("*unacked*")}
    client.close()
    return keys


def queued(setup: Setup, key: str = "celery") -> list[dict[str, Any]]:
    """Return the headers of the messages that wait in a queue."""
    client = setup.memory()
    messages = [json.loads(each)["headers"] for each in client.lrange(key, 0, -1)]
    client.close()
    return messages


def answers(results: Iterable[Any]) -> list[Any]:
    """Wait for every result."""
    return [result.get(timeout=60) for result in results]


@pytest.mark.parametrize("pool", [("-c", "1"), ("-P", "solo")], ids=" ".join)
def test_short_visibility_timeout_runs_nothing_twice(setup: Setup, pool: tuple[str, ...]):
    """Messages that wait and run for longer than it are refreshed, though a neighbour sweeps."""
    for _ in range(2):
        setup.worker(*pool, conf={"broker_transport_options": HASTY})
    results = [setup.nap.delay(n) for n in range(32)]

    assert list(range(32)) == answers(results)
    assert {1} == set(runs(setup, "nap").values())


def test_a_stock_worker_beside_ours_takes_nothing_away(setup: Setup):
    """Kombu's own sweep, by its own clock, finds what we hold refreshed in time."""
    # It does not ask whether we live: a busy machine may refresh a few seconds late.
    conf = {"broker_transport_options": {**HASTY, "visibility_timeout": 5}}
    setup.worker("-c", "1", "-Q", "elsewhere", conf={**conf, "batch_bulk": False})
    setup.worker("-c", "1", conf=conf, TESTS_NAP_SECONDS="until woken")
    results = [setup.nap.delay(n) for n in range(16)]
    await_runs(setup, "nap", 1)
    time.sleep(7)
    remember("wake")

    assert list(range(16)) == answers(results)
    assert {1} == set(runs(setup, "nap").values())


def test_another_worker_runs_what_a_killed_one_held(setup: Setup):
    """Within seconds, and only what the killed worker was running can have run twice."""
    killed = setup.worker("-c", "1", TESTS_NAP_SECONDS="until woken")
    setup.worker("-c", "1")
    results = [setup.nap.delay(n) for n in range(24)]
    await_runs(setup, "nap", 2)
    kill(killed)

    assert list(range(24)) == answers(results)
    assert sum(runs(setup, "nap").values()) <= 24 + 4


def test_a_killed_worker_is_found_by_its_neighbours(setup: Setup):
    """Long before its lease is over: they see that its process has ended."""
    conf = {"batch_lease": 600.0}
    killed = setup.worker("-c", "1", conf=conf, TESTS_NAP_SECONDS="until woken")
    results = [setup.nap.delay(n) for n in range(24)]
    await_formed(killed, "shop.nap", 1)
    for _ in range(2):
        setup.worker("-c", "1", conf=conf)
    kill(killed)

    assert list(range(24)) == answers(results)
    assert sum(runs(setup, "nap").values()) <= 24 + 4


def test_a_restarted_worker_runs_what_it_held(setup: Setup):
    """A worker that takes the place of the killed one finds its record."""
    killed = setup.worker("-c", "1", TESTS_NAP_SECONDS="until woken")
    results = [setup.nap.delay(n) for n in range(12)]
    await_runs(setup, "nap", 1)
    kill(killed)
    held = books(setup)
    second = setup.worker("-c", "1")

    assert "unacked" in held
    assert list(range(12)) == answers(results)
    assert 0 == second.stop()
    assert set() == books(setup)


def test_losses_are_counted_for_what_ran(setup: Setup):
    """The batch that ran in a killed worker comes back marked, the others unmarked."""
    killed = setup.worker("-c", "1", TESTS_NAP_SECONDS="60")
    for n in range(10):
        setup.nap.delay(n)
    await_runs(setup, "nap", 1)
    client = setup.memory()
    (owner,) = client.zrange("unacked_due", 0, -1)
    wait_until(
        lambda: "" if b"1" in client.hvals(b"unacked_held." + owner) else "not marked",
        [killed.child],
        what="the mark",
        timeout=60,
    )
    client.close()
    kill(killed)
    setup.worker("-c", "1", "-Q", "elsewhere")
    wait_until(
        lambda: "" if len(queued(setup)) == 10 else "not back", [], what="rescue", timeout=60
    )
    losses = Counter(header.get("batch_losses", 0) for header in queued(setup))
    (ran,) = (len(fact["items"]) for fact in setup.recall("nap"))

    assert {1: ran, 0: 10 - ran} == losses
    assert all(header["redelivered"] for header in queued(setup))


@pytest.mark.parametrize("pool", [("-c", "1"), ("-P", "solo")], ids=" ".join)
def test_a_message_that_nobody_has_read_yet_is_not_lost(setup: Setup, pool: tuple[str, ...]):
    """A worker that dies between the arrival of a message and its next step takes none along."""
    killed = setup.worker(*pool)
    psutil.Process(killed.pid).suspend()
    result = setup.double.delay(4)
    kill(killed)
    setup.worker("-c", "1")

    assert 8 == result.get(timeout=30)


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGQUIT])
def test_a_planned_stop_leaves_no_record_and_no_losses(setup: Setup, sign: signal.Signals):
    """What did not run is in the queue again, as it came."""
    worker = setup.worker("-c", "1", TESTS_NAP_SECONDS="until woken")
    for n in range(20):
        setup.nap.delay(n)
    await_runs(setup, "nap", 1)
    os.kill(worker.pid, sign)
    eventually(lambda: len(queued(setup)) >= 12, "what waits to be back")
    remember("wake")
    worker.child.wait(60)

    assert set() == books(setup)
    assert 20 - len(queued(setup)) <= 8
    assert not [header for header in queued(setup) if "batch_losses" in header]


def test_a_key_prefix_is_kept_in_the_books(setup: Setup):
    """Every key of ours carries the prefix, and another worker finds them by it."""
    options = {"global_keyprefix": "shop-"}
    setup.app.conf.broker_transport_options = options
    killed = setup.worker("-c", "1", conf={"broker_transport_options": options})
    results = [setup.nap.delay(n) for n in range(12)]
    await_runs(setup, "nap", 1)
    keys = books(setup)
    kill(killed)
    setup.worker("-c", "1", conf={"broker_transport_options": options})

    assert {True} == {key.startswith("shop-unacked") for key in keys}
    assert list(range(12)) == answers(results)


def test_a_worker_that_was_stopped_for_longer_than_its_lease_lets_go(setup: Setup):
    """What others have taken meanwhile it does not run as well, and it goes on serving."""
    conf = {"batch_lease": 1.0}
    stopped = setup.worker("-c", "1", conf=conf, TESTS_NAP_SECONDS="until woken")
    results = [setup.nap.delay(n) for n in range(12)]
    await_runs(setup, "nap", 1)
    process = psutil.Process(stopped.pid)
    process.suspend()
    setup.worker("-c", "1", conf=conf)
    values = answers(results)
    process.resume()
    remember("wake")
    later = [setup.nap.delay(n) for n in range(12, 24)]

    assert list(range(12)) == values
    assert list(range(12, 24)) == answers(later)
    # The pool had been given two batches; the third was waiting in the worker.
    assert {1} == {runs(setup, "nap")[n] for n in range(8, 12)}
    assert stopped.child.exit_code is None


def test_a_batch_that_waits_for_its_process_is_let_go_too(setup: Setup):
    """What others have taken is not run as well because it was formed before."""
    conf = {"batch_lease": 1.0}
    stopped = setup.worker("-c", "1", conf=conf)
    setup.doze.delay()
    await_runs(setup, "doze", 1)
    results = [setup.nap.delay(n) for n in range(8)]
    await_formed(stopped, "shop.nap", 2)
    process = psutil.Process(stopped.pid)
    process.suspend()
    other = setup.worker("-c", "1", conf=conf)
    values = answers(results)
    other.stop()
    process.resume()
    remember("wake")
    later = [setup.nap.delay(n) for n in range(8, 12)]

    assert list(range(8)) == values
    assert list(range(8, 12)) == answers(later)
    assert dict.fromkeys(range(12), 1) == runs(setup, "nap")


@pytest.mark.parametrize("waits_for", ["its time", "its rate"])
def test_what_waits_for_its_time_or_rate_is_let_go_too(setup: Setup, waits_for: str):
    """What others have taken is not run as well when its ETA has come, or its rate allows it."""
    conf, options = {"batch_lease": 1.0}, {"countdown": 6} if waits_for == "its time" else {}
    stopped = setup.worker("-c", "1", conf=conf)
    if waits_for == "its rate":
        stopped.ask("rate_limit", task_name=setup.double.name, rate_limit="6/m")
    results = setup.double.apply_many([((n,), None) for n in range(12)], **options)
    wait_until(
        lambda: "" if stopped.log.count(f"{setup.double.name}[") >= 12 else "not yet",
        [stopped.child],
        what="all messages",
        timeout=60,
    )
    process = psutil.Process(stopped.pid)
    process.suspend()
    other = setup.worker("-c", "1", conf=conf)
    values = answers(results)
    other.stop()
    process.resume()
    later = setup.double.delay(12)

    assert [2 * n for n in range(12)] == values
    assert 24 == later.get(timeout=60)
    # Those first may have run already, by their rate, when the worker was stopped.
    assert {1} == {runs(setup, "double")[n] for n in range(2, 13)}


def test_an_ordinary_task_that_waits_for_its_process_is_let_go_too(setup: Setup):
    """What others have taken is not run as well when a pool process is free."""
    conf = {"batch_lease": 1.0}
    stopped = setup.worker("-c", "1", conf=conf)
    results = [setup.doze.delay() for _ in range(3)]
    await_runs(setup, "doze", 1)
    wait_until(
        lambda: "" if stopped.log.count(f"{setup.doze.name}[") >= 3 else "not yet",
        [stopped.child],
        what="all messages",
        timeout=60,
    )
    process = psutil.Process(stopped.pid)
    process.suspend()
    other = setup.worker("-c", "1", conf=conf)
    await_runs(setup, "doze", 2)
    remember("wake")
    answers(results)
    other.stop()
    process.resume()

    assert 2 == setup.plain.delay(1).get(timeout=60)
    # The first one ran already when the worker was stopped, and once more in the other.
    assert len(setup.recall("doze")) <= 4


def test_every_connection_cut_under_load_loses_nothing(setup: Setup):
    """Again and again: the worker comes back, and acknowledges what it has done."""
    worker = setup.worker("-c", "1")
    results = [setup.slow.delay(n) for n in range(200)]
    client = setup.memory()
    for batches in (3, 8, 13):
        await_runs(setup, "slow", batches)
        client.client_kill_filter(_type="normal", skipme=True)
    client.close()

    assert list(range(200)) == answers(results)
    assert worker.child.exit_code is None
    assert "Unrecoverable" not in worker.log
    assert 0 == worker.stop()
    # A lease whose connections were cut as it ended keeps its role until that expires, in 3 s.
    eventually(lambda: not books(setup), "the end of all records")


def test_a_right_that_is_lost_while_a_worker_runs(setup: Setup):
    """Messages are still found, and one line of the log says why that takes longer."""
    client = setup.memory()
    worker = setup.worker("-c", "1")
    setup.double.delay(1).get(timeout=60)
    client.execute_command("ACL", "SETUSER", "default", "-blmove")
    try:
        values = [setup.double.delay(2).get(timeout=60)]
        eventually(lambda: "Redis does not allow BLMOVE (" in worker.log, "the warning", timeout=60)
        time.sleep(2.5)
        values.append(setup.double.delay(3).get(timeout=60))
    finally:
        client.execute_command("ACL", "SETUSER", "default", "+@all")
        client.close()

    assert [4, 6] == values
    assert 1 == worker.log.count("Redis does not allow BLMOVE (")


@pytest.mark.parametrize("command", ["blmove", "rpop", "lindex"])
def test_a_redis_without_a_command_is_read_as_by_stock_celery(setup: Setup, command: str):
    """Messages are then read singly, whatever their tasks; the lease on them stays."""
    client = setup.memory()
    client.execute_command("ACL", "SETUSER", "default", f"-{command}")
    try:
        worker = setup.worker("-c", "1", TESTS_NAP_SECONDS="until woken")
        results = [setup.nap.delay(n) for n in range(6)]
        await_runs(setup, "nap", 1)
        held = {key.partition(".")[0] for key in books(setup)}
        refused = worker.ask("batch_pause", task=setup.nap.name)
        remember("wake")
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
    assert set() == books(setup)
