"""A worker of batch tasks holds no more ordinary tasks than its user's prefetch allows."""

from __future__ import annotations

from typing import Any

import pytest

from celery_batch.processes.managed_process import wait_until
from tests.services.setup import Setup, Worker

#: Celery's default multiplier of 4 for each of two processes.
MOST = 8

#: Longer than any of these tests.
LATER = 600


def wait_for(setup: Setup, worker: Worker, **wanted: int) -> None:
    """Return when lists, and messages that are held, are so many, and still are a second later."""
    looks: list[dict[str, int]] = []

    def why_not() -> str:
        with setup.memory() as client:
            counts = {name: client.llen(name) for name in wanted if name != "held"}
            looks.append({"held": client.hlen("unacked"), **counts})
        settled = len(looks) > 12 and all(wanted.items() <= each.items() for each in looks[-12:])
        return "" if settled else f"{looks[-1]} in place of {wanted}"

    wait_until(why_not, [worker.child], what=worker.name, timeout=30)


def wake(setup: Setup, results: list[Any]) -> None:
    """Let all end that doze."""
    setup.module.remember("wake")
    for result in results:
        result.get(timeout=60)


def test_second_worker_gets_its_part(setup: Setup):
    """Each holds as many as a plain worker would, beside the two that run; all are run."""
    dozes = [setup.doze.delay() for _ in range(60)]
    first = setup.worker("-c", "2")
    wait_for(setup, first, held=MOST, celery=60 - 2 - MOST)
    second = setup.worker("-c", "2")
    wait_for(setup, second, held=2 * MOST, celery=60 - 2 * (2 + MOST))
    wake(setup, dozes)

    assert 60 == len(setup.recall("doze"))


@pytest.mark.parametrize(
    ("conf", "held"),
    [
        ({"worker_prefetch_multiplier": 1}, 2),
        ({"worker_prefetch_multiplier": 0}, 28),
        ({"task_acks_late": True, "worker_prefetch_multiplier": 3}, 6),
        ({"worker_disable_prefetch": True}, 0),
        ({"worker_disable_prefetch": True, "task_acks_late": True}, 2),
    ],
    ids=["one each", "no limit", "late", "disabled", "disabled, late"],
)
def test_settings_of_prefetch_hold(setup: Setup, conf: dict[str, Any], held: int):
    """What the user has set is the limit, as in a worker without batch tasks."""
    dozes = [setup.doze.delay() for _ in range(30)]
    running = 0 if conf.get("task_acks_late") else 2
    worker = setup.worker("-c", "2", conf=conf)
    wait_for(setup, worker, held=held, celery=30 - running - held)
    wake(setup, dozes)


def test_batch_tasks_of_another_queue_are_fetched(setup: Setup):
    """However many ordinary tasks wait, a batch task's messages come in."""
    dozes = [setup.doze.delay() for _ in range(30)]
    worker = setup.worker("-c", "2", "-Q", "celery,counter")
    wait_for(setup, worker, held=MOST)
    clerks = [setup.clerk.delay(n) for n in range(20)]
    wait_for(setup, worker, held=MOST + 20, counter=0, celery=30 - 2 - MOST)
    setup.module.remember("wake")

    assert list(range(20)) == [clerk.get(timeout=60)[0] for clerk in clerks]
    wake(setup, dozes)


def test_batch_tasks_of_the_same_queue_wait_as_in_a_plain_worker(setup: Setup):
    """They are read once nothing ordinary is before them, whoever has taken that."""
    dozes = [setup.doze.delay() for _ in range(10)]
    worker = setup.worker("-c", "2")
    wait_for(setup, worker, held=MOST, celery=0)
    doubles = [setup.double.delay(n) for n in range(3)]
    wait_for(setup, worker, held=MOST + 3, celery=0)
    dozes.append(setup.doze.delay())
    doubles += [setup.double.delay(n) for n in range(3, 6)]
    wait_for(setup, worker, held=MOST + 3, celery=4)
    with setup.memory() as client:
        client.rpop("celery")
    dozes.pop()
    wait_for(setup, worker, held=MOST + 6, celery=0)
    wake(setup, dozes)

    assert [2 * n for n in range(6)] == [double.get(timeout=60) for double in doubles]


def test_urgent_batch_tasks_of_the_same_queue_are_fetched(setup: Setup):
    """Messages of another priority lie in another list."""
    dozes = [setup.doze.apply_async(priority=6) for _ in range(30)]
    worker = setup.worker("-c", "2")
    wait_for(setup, worker, held=MOST)
    doubles = [setup.double.apply_async((n,), priority=0) for n in range(20)]
    wait_for(setup, worker, held=MOST + 20, celery=0)
    wake(setup, dozes)

    assert [2 * n for n in range(20)] == [double.get(timeout=60) for double in doubles]


def test_tasks_with_an_eta_count_when_it_has_come(setup: Setup):
    """Until then a worker holds them beside the others; from then on in place of others."""
    worker = setup.worker("-c", "2")
    later = [setup.doze.apply_async(countdown=LATER) for _ in range(15)]
    soon = [setup.doze.apply_async(countdown=6) for _ in range(MOST + 4)]
    wait_for(setup, worker, held=15 + MOST + 2, celery=0)  # two run
    dozes = [setup.doze.delay() for _ in range(5)]
    wait_for(setup, worker, held=15 + MOST + 2, celery=5)
    wake(setup, soon + dozes)
    for each in later:
        each.revoke()


def test_larger_pool_holds_more(setup: Setup):
    """The limit is for each pool process."""
    dozes = [setup.doze.delay() for _ in range(30)]
    worker = setup.worker("-c", "2")
    wait_for(setup, worker, held=MOST)
    setup.app.control.pool_grow(1, destination=[worker.name])
    wait_for(setup, worker, held=MOST + 4, celery=30 - 3 - MOST - 4)
    wake(setup, dozes)
