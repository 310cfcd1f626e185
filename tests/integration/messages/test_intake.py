"""What a worker cannot use soon stays in the broker for others."""

from __future__ import annotations

from collections import Counter

import pytest

from celery_batch.processes.managed_process import wait_until
from tests.conftest import Setup

#: Running, ready and gathering: what one process can put to use of ``shop.nap``.
USEFUL = 3 * 4


def shares(setup: Setup) -> list[int]:
    """Return how many naps each process has taken, fewest first."""
    counts = Counter(fact["pid"] for fact in setup.recall("nap") for _ in fact["items"])
    return sorted(counts.values())


def held(setup: Setup, worker) -> int:
    """Return how many messages a worker has read and not yet acknowledged."""
    inspect = setup.app.control.inspect([worker.name], timeout=60.0, limit=1)
    return len(inspect.reserved()[worker.name])


@pytest.mark.parametrize("bulk", [True, False], ids=["bulk", "one by one"])
def test_fast_worker_does_most(setup: Setup, bulk: bool):  # noqa: FBT001
    """Of two workers the one with the slow model keeps no more than it can use."""
    for seconds in ("1", "0.05"):
        setup.worker("-c", "1", conf={"batch_bulk": bulk}, TESTS_NAP_SECONDS=seconds)
    results = [setup.nap.delay(n) for n in range(300)]

    assert list(range(300)) == [result.get(timeout=60) for result in results]

    slow, fast = shares(setup)

    assert slow < fast / 2


def test_busy_task_takes_no_more_than_its_share(setup: Setup):
    """A task's backlog fills neither the places of other tasks nor their queues' way in."""
    naps = setup.nap.delay_many(range(400))  # more than run until the end of the test
    worker = setup.worker("-c", "1", "-Q", "celery,counter", TESTS_NAP_SECONDS="0.4")
    what = "a worker that holds what it can use"
    wait_until(
        lambda: "" if held(setup, worker) >= USEFUL - 4 else "too few",
        [worker.child],
        what=what,
        timeout=60,
    )

    assert held(setup, worker) <= USEFUL
    assert 7 == setup.clerk.delay(7).get(timeout=60)[0]
    assert setup.memory().llen("celery") > 0
    assert list(range(60)) == [nap.get(timeout=60) for nap in naps[:60]]
