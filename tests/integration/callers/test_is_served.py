"""Whether a task is served, before it is sent."""

from __future__ import annotations

import asyncio
import signal
import threading

import psutil
import pytest
from celery import Celery
from kombu.exceptions import OperationalError

from celery_batch import BatchTask
from celery_batch.client import served as module
from celery_batch.client.served import ServedPoller
from celery_batch.client_methods import ClientMethods
from tests.services.servers.ports import quiet_port
from tests.services.setup import Setup
from tests.services.shared_setup import eventually

KEY = "celery-batch-served.celery.shop.double"


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker on a busy machine may take longer than the 3 s for which calls wait by default."""
    for method in (ClientMethods.is_served, ClientMethods.ais_served):
        monkeypatch.setattr(method, "__kwdefaults__", {"timeout": 60.0})


def same(x):
    """Return each input."""
    return x


def test_a_worker_that_is_there(each_setup: Setup):
    """From when its models are warm to its end, for the queues that it consumes alone."""
    before = each_setup.double.is_served()
    worker = each_setup.worker("-c", "1")
    eventually(each_setup.double.is_served, "a worker")
    others = [each_setup.double.is_served("nobody"), each_setup.elsewhere.is_served()]
    worker.stop()
    eventually(lambda: not each_setup.double.is_served(), "no worker")

    assert before is False
    assert [False, False] == others


def test_a_model_that_loads_is_not_served(setup: Setup):
    """A worker whose models are loading is not there yet, though it has started."""
    health = setup.folder / "health"
    slowly = {"CELERY_BATCH_HEALTH_FILE": str(health), "TESTS_LOAD_SECONDS": "6"}
    worker = setup.launch("-c", "1", "-Q", "counter", **slowly)
    eventually(lambda: health.exists() and "starting" in health.read_text(), "a worker that starts")
    while_loading = setup.clerk.is_served()
    eventually(setup.clerk.is_served, "a warm model")

    assert while_loading is False
    assert 1 == len(setup.recall("load"))
    assert worker.child.exit_code is None


def test_a_queue_that_only_calls_name(setup: Setup):
    """A worker that consumes a queue serves any task there, routed to it or not."""
    setup.worker("-c", "1", "-Q", "slow")
    eventually(lambda: setup.double.is_served("slow"), "a worker of the queue")

    assert not setup.double.is_served()


@pytest.mark.parametrize("order", ["batch_pause", "batch_drain"])
def test_an_operator_takes_a_worker_away(setup: Setup, order: str):
    """Paused and drained workers do not serve, and serve again after batch_resume."""
    worker = setup.worker("-c", "1")
    eventually(setup.double.is_served, "a worker")
    arguments = {"task": "shop.double"} if order == "batch_pause" else {}
    worker.ask(order, **arguments)
    eventually(lambda: not setup.double.is_served(), "no worker")
    neighbour = setup.slow.is_served()
    worker.ask("batch_resume", **arguments)
    eventually(setup.double.is_served, "the worker again")

    assert neighbour is (order == "batch_pause")


def test_a_killed_worker_is_forgotten(setup: Setup):
    """What a killed worker has said of itself expires, though another one goes on."""
    first, second = setup.worker("-c", "1"), setup.worker("-c", "1")
    eventually(lambda: 2 == members(setup), "two workers")
    family = psutil.Process(first.child.pid).children(recursive=True)
    for process in family:
        process.send_signal(signal.SIGKILL)
    eventually(lambda: 1 == members(setup), "one worker")

    assert setup.double.is_served()
    assert second.child.exit_code is None


def members(setup: Setup, prefix: str = "") -> int:
    """Return how many workers have an entry for a task."""
    with setup.memory() as client:
        return client.zcard(prefix + KEY)


def test_other_apps_workers_do_not_count(setup: Setup):
    """A worker of another app on the same broker answers pings, and serves nothing of ours."""
    setup.worker("-c", "1")
    eventually(setup.double.is_served, "a worker")
    with Celery("other", broker=setup.url, set_as_current=False) as app:
        other = app.task(base=BatchTask, name="other.task")(same)

        assert app.control.ping(timeout=60.0, limit=1)
        assert not other.is_served()


def test_only_the_first_call_waits(setup: Setup, monkeypatch: pytest.MonkeyPatch):
    """A thousand calls are a few polls of the broker, none of them on the caller's thread."""
    polls: list[str] = []
    is_served = ServedPoller._is_served

    def counted(self: ServedPoller, queue: str, task: str) -> bool:
        polls.append(threading.current_thread().name)
        return is_served(self, queue, task)

    monkeypatch.setattr(ServedPoller, "_is_served", counted)
    answers = {setup.double.is_served() for _ in range(1000)}

    assert {False} == answers
    assert {"celery-batch-served"} == set(polls)
    assert len(polls) < 10


def test_from_coroutines(setup: Setup):
    """Many coroutines at once, of which each has the answer."""

    async def answers() -> list[bool]:
        """Return a hundred answers at once."""
        return await asyncio.gather(*(setup.double.ais_served() for _ in range(100)))

    before = asyncio.run(answers())
    setup.worker("-c", "1")
    eventually(lambda: all(asyncio.run(answers())), "a worker")

    assert [False] * 100 == before


def test_a_wait_without_an_end(setup: Setup):
    """None is no limit of the time for the broker's answer."""
    assert setup.double.is_served(timeout=None) is False
    assert asyncio.run(setup.elsewhere.ais_served(timeout=None)) is False


def test_a_broker_that_is_away_is_no_answer():
    """A broker that cannot be reached raises an error, and is not an absent worker."""
    with Celery("away", broker=f"redis://127.0.0.1:{quiet_port()}/0", set_as_current=False) as app:
        task = app.task(base=BatchTask, name="away.task")(same)

        with pytest.raises(
            OperationalError, match=r"away\.task: whether it is served is not known"
        ):
            task.is_served()
        with pytest.raises(
            OperationalError, match=r"away\.task: whether it is served is not known"
        ):
            asyncio.run(task.ais_served())


def test_the_thread_ends_without_calls(setup: Setup, monkeypatch: pytest.MonkeyPatch):
    """The thread has ended some seconds after the last call."""
    monkeypatch.setattr(module, "_LINGER", 0.1)
    setup.double.is_served()
    names = lambda: {each.name for each in threading.enumerate()}  # noqa: E731
    eventually(lambda: "celery-batch-served" not in names(), "the end of the thread")

    assert setup.double.is_served() is False


def test_where_calls_run_at_once():
    """An eager app needs no worker."""
    with Celery("eager", set_as_current=False) as app:
        app.conf.task_always_eager = True
        task = app.task(base=BatchTask, name="eager.task")(same)

        assert task.is_served()
        assert asyncio.run(task.ais_served())


def test_apps_with_a_prefix_see_their_own(setup: Setup):
    """The entries of an app with a key prefix are under that prefix."""
    options = {"broker_transport_options": {"global_keyprefix": "mine:"}}
    setup.launch("-c", "1", conf=options)  # whose answer to a ping would go to others
    eventually(lambda: 1 == members(setup, "mine:"), "an entry")
    without = setup.double.is_served()
    with Celery("mine", broker=setup.url, set_as_current=False) as app:
        app.conf.update(options)
        task = app.task(base=BatchTask, name="shop.double")(same)

        assert task.is_served()
    assert not without


def test_the_dead_are_forgotten_by_the_living(setup: Setup):
    """An entry whose time is over is removed when another worker renews its own."""
    with setup.memory() as client:
        client.zadd(KEY, {"long gone": 1.0})
        worker = setup.worker("-c", "1")
        eventually(lambda: b"long gone" not in client.zrange(KEY, 0, -1), "its end")
        (entry,) = client.zrange(KEY, 0, -1)

    assert entry.startswith(worker.name.encode())
