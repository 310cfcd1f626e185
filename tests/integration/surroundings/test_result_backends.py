"""Results wherever Celery can keep them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, chord

from tests.services.stage import Stage

#: Result backends on Redis as the broker; the folder is the stage's.
BACKENDS = {
    "redis": "",
    "sqlite": "db+sqlite:///{folder}/results.sqlite",
    "files": "file://{folder}/results",
    "rpc": "rpc://",
    "disabled": "disabled://",
}

#: RPC has no memory that could count a chord's parts.
COUNTING = ["redis", "sqlite", "files"]


def settings(stage: Stage, name: str) -> dict[str, Any]:
    """Return the settings of a worker and of its clients."""
    conf = {"task_default_queue": f"kept-{name}", "result_chord_retry_interval": 0.1}
    backend = BACKENDS[name].format(folder=stage.folder)
    return {**conf, "result_backend": backend} if backend else conf


@pytest.fixture(scope="module")
def kept(stage: Stage) -> dict[str, Celery]:
    """Return a client for each result backend, each with a worker of its own."""
    (stage.folder / "results").mkdir()
    starting = {
        name: stage.launch("tests.services.kept", "-c", "1", conf=settings(stage, name))
        for name in BACKENDS
    }
    for ready in starting.values():
        ready()
    return {name: stage.client(**settings(stage, name)) for name in BACKENDS}


@pytest.fixture(scope="module")
def rpc_on_rabbitmq(rabbit_stage: Stage) -> Iterator[Celery]:
    """Return a client whose results come back over RabbitMQ."""
    conf = {"result_backend": "rpc://"}
    rabbit_stage.worker("tests.services.kept", "-c", "1", conf=conf)
    return rabbit_stage.client(**conf)


def check_results(app: Celery) -> None:
    """Values, errors and retries reach the caller, each item its own."""
    items = ["a", "bad", 3, "flaky", {"deep": [1]}]
    results = [app.send_task("kept.echo", (item,)) for item in items]
    with pytest.raises(ValueError, match="a bad item"):
        results[1].get(timeout=15)

    assert ["a", 3, "flaky", {"deep": [1]}] == [
        results[n].get(timeout=15, interval=0.05) for n in (0, 2, 3, 4)
    ]
    assert ["SUCCESS", "FAILURE", "SUCCESS", "SUCCESS", "SUCCESS"] == [
        result.state for result in results
    ]


@pytest.mark.parametrize("name", [name for name in BACKENDS if name != "disabled"])
def test_results_reach_the_caller(kept: dict[str, Celery], name: str):
    """Values, errors and retries reach the caller, each item its own."""
    check_results(kept[name])


def test_results_over_rabbitmq_reach_the_caller(rpc_on_rabbitmq: Celery):
    """With RPC over RabbitMQ each result goes to who asked."""
    check_results(rpc_on_rabbitmq)


@pytest.mark.parametrize("name", COUNTING)
def test_chord_counts_its_items(kept: dict[str, Celery], name: str):
    """A chord of batch tasks gathers every item's result, and fails with a failing one."""
    app = kept[name]
    echo = [app.signature("kept.echo", (n,)) for n in range(5)]
    total = app.signature("kept.total")
    fine = chord(echo, app=app)(total)
    broken = chord([*echo, app.signature("kept.echo", ("bad",))], app=app)(total)

    assert 10 == fine.get(timeout=15, interval=0.05)
    with pytest.raises(Exception, match="a bad item"):
        broken.get(timeout=15, interval=0.05)


@pytest.mark.parametrize("name", ["rpc", "disabled"])
def test_chord_is_refused_where_nothing_can_count(kept: dict[str, Celery], name: str):
    """Celery refuses a chord at once where no result backend could count its parts."""
    app = kept[name]
    echo = [app.signature("kept.echo", (n,)) for n in range(2)]

    with pytest.raises(NotImplementedError):
        chord(echo, app=app)(app.signature("kept.total"))


def test_tasks_run_without_a_result_backend(stage: Stage, kept: dict[str, Celery]):
    """Where no results are kept, tasks run, and asking for a result is an error."""
    stage.redis.delete("stage:kept")
    results = [kept["disabled"].send_task("kept.echo", (f"unkept{n}",)) for n in range(5)]

    assert [f"unkept{n}" for n in range(5)] == sorted(stage.await_facts("kept", 5))
    with pytest.raises(NotImplementedError):
        results[0].get(timeout=1)
