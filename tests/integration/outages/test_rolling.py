"""Workers replaced one by one under load: nothing is lost, and nothing runs twice."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from celery_batch.processes.managed_process import wait_until
from tests.apps.memory import recall


class Load:
    """Sends tasks one by one, as long as it is not told to end."""

    def __init__(self, task):
        """Prepare for a task."""
        self.results = []
        self._task = task
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._send)

    def __enter__(self):
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_exception):
        """End."""
        self._over.set()
        self._thread.join()

    def goes_on(self, worker, count=30):
        """Return when so many more have been answered."""
        wanted = self.answered() + count
        wait_until(
            lambda: "" if self.answered() >= wanted else f"{self.answered()} of {wanted}",
            [worker.child],
            what="answers",
            timeout=60,
        )

    def answered(self):
        """Return how many have their answer."""
        return sum(result.ready() for result in list(self.results))

    def _send(self):
        while not self._over.wait(0.02):
            self.results.append(self._task.delay(len(self.results)))


@pytest.fixture
def worker(setup):
    """Start a worker with one pool process."""
    return lambda: setup.worker("--concurrency=1")


def test_new_workers_take_over_from_old(setup, worker):
    """First the new one takes tasks, then the old one is drained or ended, and so on."""
    old = worker()
    with Load(setup.slow) as load:
        load.goes_on(old)
        new = worker()
        told = old.ask("batch_drain")
        wait_until(
            lambda: "" if not old.status()["shop.slow"]["running"] else "it still runs one",
            [old.child],
            what="the drained worker",
            timeout=60,
        )
        codes = [old.stop()]
        load.goes_on(new)
        newer = worker()
        codes.append(new.stop())  # undrained, in the middle of its work
        load.goes_on(newer)
    values = [result.get(timeout=60) for result in load.results]
    times = Counter(item for batch in recall("slow") for item in batch["items"])

    assert [0, 0] == codes
    assert "ok" in told
    assert list(range(len(load.results))) == values
    assert {1} == set(times.values())
    assert len(values) == len(times)


def test_what_waits_without_workers_is_not_lost(setup, worker):
    """All workers may be gone for a while: tasks wait, and the next worker has them."""
    first = worker()
    results = setup.slow.delay_many(range(400))
    first.stop()
    waiting = sum(not result.ready() for result in results)
    worker()
    values = [result.get(timeout=60) for result in results]
    times = Counter(item for batch in recall("slow") for item in batch["items"])

    assert waiting > 0
    assert list(range(400)) == values
    assert {1} == set(times.values())
