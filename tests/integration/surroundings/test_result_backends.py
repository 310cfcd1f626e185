"""Results wherever Celery can keep them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from celery import Celery, chord, signals

from celery_batch import BatchTask, QueueFull
from celery_batch.protocol import PAYLOADS
from tests.services.launcher import Launcher
from tests.services.shared_setup import eventually

#: Result backends on Redis as the broker; the folder is the stage's.
BACKENDS = {
    "redis": "",
    "sqlite": "db+sqlite:///{folder}/results.sqlite",
    "files": "file://{folder}/results",
    "rpc": "rpc://",
    "disabled": "disabled://",
}

LARGE = np.random.default_rng(1).random(20_000).astype("f4")

#: RPC has no memory that could count a chord's parts.
COUNTING = ["redis", "sqlite", "files"]


def settings(launcher: Launcher, name: str) -> dict[str, Any]:
    """Return the settings of a worker and of its clients."""
    conf = {"task_default_queue": f"kept-{name}", "result_chord_retry_interval": 0.1}
    backend = BACKENDS[name].format(folder=launcher.folder)
    return {**conf, "result_backend": backend} if backend else conf


@pytest.fixture(scope="module")
def kept(launcher: Launcher) -> dict[str, Celery]:
    """Return a client for each result backend, each with a worker of its own."""
    (launcher.folder / "results").mkdir()
    starting = {
        name: launcher.launch("tests.apps.any_backend", "-c", "1", conf=settings(launcher, name))
        for name in BACKENDS
    }
    for ready in starting.values():
        ready()
    return {name: launcher.client(**settings(launcher, name)) for name in BACKENDS}


@pytest.fixture(scope="module")
def rpc_on_rabbitmq(rabbit_launcher: Launcher) -> Iterator[Celery]:
    """Return a client whose results come back over RabbitMQ."""
    conf = {"result_backend": "rpc://"}
    rabbit_launcher.worker("tests.apps.any_backend", "-c", "1", conf=conf)
    return rabbit_launcher.client(**conf)


@pytest.fixture(scope="module")
def files_on_rabbitmq(rabbit_launcher: Launcher) -> Celery:
    """Return a client whose large values lie in files, and whose results come over RabbitMQ."""
    conf = {
        "result_backend": "rpc://",
        "task_default_queue": "kept-beside-files",
        "batch_payload_store": f"file://{rabbit_launcher.folder}/payloads",
    }
    rabbit_launcher.worker("tests.apps.any_backend", "-c", "1", conf=conf)
    return rabbit_launcher.client(**conf)


@contextmanager
def task_of(app: Celery, name: str = "kept.doubled") -> Iterator[Any]:
    """Have a task as callers have it that use celery_batch, while the context lasts."""

    @app.task(base=BatchTask, name=name, shared=False)
    def doubled(x):
        """Only the worker's does anything."""

    app.finalize()
    yield app.tasks[name]
    del app.tasks[name]


def check_large(app: Celery, *, is_stored: bool) -> None:
    """Large arrays come and go whole; the messages say whether their bytes lie beside them."""
    headers: list[Any] = []

    def note(headers: Any, seen: list[Any] = headers, **_: Any) -> None:
        seen.append(headers.get(PAYLOADS))

    signals.before_task_publish.connect(note, weak=False)
    try:
        with task_of(app) as doubled:
            found = [doubled.delay(n * LARGE) for n in (1, 2)]
            values = [each.get(timeout=30) for each in found]
    finally:
        signals.before_task_publish.disconnect(note)

    assert all(np.array_equal(2 * n * LARGE, each) for n, each in zip((1, 2), values, strict=True))
    assert [is_stored, is_stored] == [each is not None for each in headers]


def check_results(app: Celery) -> None:
    """Values, errors and retries reach the caller, each item its own."""
    items = ["a", "bad", 3, "flaky", {"deep": [1]}, "full"]
    results = [app.send_task("kept.echo", (item,)) for item in items]
    with pytest.raises(ValueError, match="a bad item"):
        results[1].get(timeout=60)
    with pytest.raises(QueueFull, match="no room") as refused:
        results[5].get(timeout=60)

    assert 2.5 == refused.value.retry_after
    assert ["a", 3, "flaky", {"deep": [1]}] == [
        results[n].get(timeout=60, interval=0.05) for n in (0, 2, 3, 4)
    ]
    assert ["SUCCESS", "FAILURE", "SUCCESS", "SUCCESS", "SUCCESS", "FAILURE"] == [
        result.state for result in results
    ]


@pytest.mark.parametrize("name", [name for name in BACKENDS if name != "disabled"])
def test_results_reach_the_caller(kept: dict[str, Celery], name: str):
    """Values, errors and retries reach the caller, each item its own."""
    check_results(kept[name])


def test_results_over_rabbitmq_reach_the_caller(rpc_on_rabbitmq: Celery):
    """With RPC over RabbitMQ each result goes to who asked."""
    check_results(rpc_on_rabbitmq)


@pytest.mark.parametrize("name", [name for name in BACKENDS if name != "disabled"])
def test_a_result_that_looks_like_a_typed_value(kept: dict[str, Celery], name: str):
    """A user's dict stays a dict, wherever results are kept."""
    data = {"deep": [{"__type__": "ndarray", "__value__": [1]}]}
    with task_of(kept[name], "kept.echo") as echo:
        found = echo.delay(data).get(timeout=60)

    assert data == found


@pytest.mark.parametrize("name", [name for name in BACKENDS if name != "disabled"])
def test_large_arrays_reach_the_worker_and_the_caller(kept: dict[str, Celery], name: str):
    """Those of calls are in the broker's Redis where no result backend keeps them."""
    check_large(kept[name], is_stored=True)


def test_large_arrays_over_rabbitmq(rpc_on_rabbitmq: Celery):
    """Without a Redis they are in their messages."""
    check_large(rpc_on_rabbitmq, is_stored=False)


def test_large_arrays_in_files(files_on_rabbitmq: Celery, rabbit_launcher: Launcher):
    """A directory serves as well as a Redis; a call's file goes when it has ended."""
    check_large(files_on_rabbitmq, is_stored=True)

    folder = rabbit_launcher.folder / "payloads"
    eventually(lambda: not any(folder.iterdir()), "the end of all files")


@pytest.mark.parametrize("name", ["redis", "sqlite"])
def test_a_caller_that_stores_nothing(kept: dict[str, Celery], launcher: Launcher, name: str):
    """Its arrays are in their messages and its results whole, though the worker has a store."""
    assert name in kept  # whose worker runs
    check_large(
        launcher.client(**settings(launcher, name), batch_payload_store=False), is_stored=False
    )


def test_a_caller_that_knows_celery_only(kept: dict[str, Celery]):
    """Its long lists, and the result, are JSON that any program reads."""
    app = kept["redis"]
    numbers = [0.5, 1.0] * 10_000
    result = app.send_task("kept.doubled_as_lists", (numbers,))

    assert [1.0, 2.0] * 10_000 == result.get(timeout=30)
    stored = json.loads(app.backend.get(app.backend.get_key_for_task(result.id)))
    assert [1.0, 2.0] * 10_000 == stored["result"]
    assert PAYLOADS not in stored


@pytest.mark.parametrize("name", COUNTING)
def test_chord_counts_its_items(kept: dict[str, Celery], name: str):
    """A chord of batch tasks gathers every item's result, and fails with a failing one."""
    app = kept[name]
    echo = [app.signature("kept.echo", (n,)) for n in range(5)]
    total = app.signature("kept.total")
    fine = chord(echo, app=app)(total)
    broken = chord([*echo, app.signature("kept.echo", ("bad",))], app=app)(total)

    assert 10 == fine.get(timeout=60, interval=0.05)
    with pytest.raises(Exception, match="a bad item"):
        broken.get(timeout=60, interval=0.05)


@pytest.mark.parametrize("name", ["rpc", "disabled"])
def test_chord_is_refused_where_nothing_can_count(kept: dict[str, Celery], name: str):
    """Celery refuses a chord at once where no result backend could count its parts."""
    app = kept[name]
    echo = [app.signature("kept.echo", (n,)) for n in range(2)]

    with pytest.raises(NotImplementedError):
        chord(echo, app=app)(app.signature("kept.total"))


def test_tasks_run_without_a_result_backend(launcher: Launcher, kept: dict[str, Celery]):
    """Where no results are kept, tasks run, and asking for a result is an error."""
    launcher.redis.delete("stage:kept")
    results = [kept["disabled"].send_task("kept.echo", (f"unkept{n}",)) for n in range(5)]

    assert [f"unkept{n}" for n in range(5)] == sorted(launcher.await_facts("kept", 5))
    with pytest.raises(NotImplementedError):
        results[0].get(timeout=1)
