"""What a running Flower shows of batches: every item, its times, the worker's numbers."""

from __future__ import annotations

import json
import os
import re
import time
import urllib.request

import pytest

from celery_batch.processes.managed_process import ManagedProcess, wait_until
from tests.services.setup import CELERY, emptied, enter_setup, environment_of, surroundings
from tests.services.shared_setup import SharedSetup, eventually

MODULE = "tests.apps.features"

#: Seconds that items wait for their batch in these tests.
WAIT = 1.0


class Flower:
    """A Flower beside a worker, and what its API says."""

    def __init__(self, shared, folder):
        env = {**os.environ, **shared.environment, "FLOWER_UNAUTHENTICATED_API": "true"}
        command = [CELERY, "-A", MODULE, "flower", "--address=127.0.0.1", "--port=0"]
        command.append("--inspect_timeout=30000")  # who is asked by name is not waited for longer
        self.child = ManagedProcess(command, folder / "flower.log", env=env)
        self._browser = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self.url = ""

    def why_not_ready(self):
        """Say why it does not answer yet."""
        visit = re.search(r"Visit me at (http://\S+)", self.child.log.read_text())
        if visit is None:
            return "it has not said where it listens"
        self.url = visit[1].rstrip("/")
        try:
            return "" if "OK" in self.text("healthcheck") else "not healthy"
        except OSError as error:
            return str(error)

    def text(self, path):
        """Return what a page says."""
        with self._browser.open(f"{self.url}/{path}", timeout=60) as answer:
            return answer.read().decode()

    def tasks(self, results, state):
        """Return what it knows of some tasks, once all are in this state."""

        def known():
            tasks = json.loads(self.text("api/tasks?limit=1000"))
            found = [tasks.get(result.id, {}) for result in results]
            return found if {state} == {task.get("state") for task in found} else None

        return eventually(known, f"{state} in Flower")

    def metric(self, name, task):
        """Return the value of one of its metrics; None where there is none."""
        found = re.search(
            rf'^{name}\{{.*task="{task}".*\}} (\S+)$', self.text("metrics"), re.MULTILINE
        )
        return found and float(found[1])


@pytest.fixture(scope="module")
def shared(redis_server, tmp_path_factory):
    """The features' app on an empty Redis."""
    environment = environment_of(emptied(redis_server))
    with surroundings(environment):
        setup = enter_setup(environment, tmp_path_factory.mktemp("flower"), MODULE)
        setup.app.finalize()
        shared = SharedSetup(setup, "redis", "prefork")
        try:
            yield shared
        finally:
            setup.close()


@pytest.fixture(scope="module")
def flower(shared, tmp_path_factory):
    """A Flower that hears of everything the worker does."""
    flower = Flower(shared, tmp_path_factory.mktemp("flower"))
    with flower.child:
        wait_until(flower.why_not_ready, [flower.child], what="flower", timeout=90)
        assert shared.worker.child.exit_code is None
        gate = shared.unique("first")
        shared.open_gate(gate)

        def hears():
            shared.hold.delay(gate).get(timeout=30)
            return json.loads(flower.text("api/tasks"))

        eventually(hears, "an event in Flower", timeout=90)
        yield flower


def test_items_of_a_batch_have_their_own_states(shared, flower):
    """One that fails and two that succeed share a batch, and each is shown as it ended."""
    gate = shared.close_gate()
    failing, *fine = results = [shared.act.delay(what) for what in ("fail", "good", "fine")]
    waiting = flower.tasks(results, "RECEIVED")
    shared.open_gate(gate)
    (failed,), succeeded = flower.tasks([failing], "FAILURE"), flower.tasks(fine, "SUCCESS")

    assert [["fail", "good", "fine"]] == shared.batches("act")
    assert [(None, None)] * 3 == [(task["started"], task["runtime"]) for task in waiting]
    assert "told to fail" in failed["exception"]
    assert ["'GOOD'", "'FINE'"] == [task["result"] for task in succeeded]
    assert {shared.worker.name} == {task["worker"] for task in [failed, *succeeded]}
    assert all(task["runtime"] > 0 for task in succeeded)


def test_the_wait_for_a_batch_is_prefetch_time(shared, flower):
    """Received is when the worker has read an item, started is when its batch has."""
    first, second = shared.close_gate(), shared.unique("gate")
    sent = time.time()
    results = [shared.hold_many.delay(second, n) for n in range(3)]
    flower.tasks(results, "RECEIVED")
    received = time.time()
    eventually(lambda: time.time() > received + WAIT, "the wait")
    shared.open_gate(first)
    shared.wait_at(second)
    running = flower.tasks(results, "STARTED")
    prefetch = flower.metric("flower_task_prefetch_time_seconds", "f.hold_many")
    seen = time.time()
    eventually(lambda: time.time() > seen + WAIT, "the model")
    shared.open_gate(second)
    ended = flower.tasks(results, "SUCCESS")
    waits = [task["started"] - task["received"] for task in running]

    assert all(sent <= task["received"] <= received for task in running)
    assert all(task["started"] > received + WAIT for task in running)
    assert min(waits) > WAIT
    assert min(waits) - 0.001 <= prefetch <= max(waits) + 0.001
    assert [task["started"] for task in running] == [task["started"] for task in ended]
    assert [task["uuid"] for task in ended if task["runtime"] < WAIT] == []


def test_the_worker_page_shows_batches(shared, flower):
    """The worker's numbers are among its statistics, a line for people and all for programs."""
    name = shared.worker.name

    def told():
        workers = json.loads(flower.text(f"api/workers?refresh=true&workername={name}"))
        stats = workers[name].get("stats", {})
        return stats if stats.get("batches", {}).get("f.hold", {}).get("batches") else None

    stats = eventually(told, "the worker's statistics")
    page = flower.text(f"worker/{name}")

    assert stats["models on"].startswith("cpu, idle ")
    assert re.search(r"batches of f\.hold</td>\s*<td[^>]*>\d+, of 1\.0 rows on average", page)


def test_events_that_flower_turns_on_are_logged_with_their_cost(shared, flower):
    """A worker without task events says once what turned them on, and what that costs."""
    turned_on = "Task events were turned on at run time: each item costs three messages more"
    conf = {"worker_send_task_events": False}
    with shared.another(queue="quiet", conf=conf) as worker:

        def is_logged():
            shared.echo.apply_async(("first",), queue="quiet").get(timeout=30)
            return turned_on in worker.log

        eventually(is_logged, "events that were turned on")
        others = [task.apply_async((2,), queue="quiet") for task in (shared.echo, shared.double)]
        flower.tasks(others, "SUCCESS")

        assert 1 == worker.log.count(turned_on)
        assert "intake off (task events are on)" not in worker.log
