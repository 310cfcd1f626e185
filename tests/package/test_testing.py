"""The doubles that ship for tests of your own."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from celery import Celery, _state

from celery_batch import BatchTask, DeadlineExceeded, Model, QueueFull, apredict, predict
from celery_batch.errors import ConfigurationError
from celery_batch.runtime import registry
from celery_batch.testing import (
    EchoModel,
    HungryModel,
    ManualClock,
    PoisonModel,
    full_queue,
    no_worker,
)


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Celery:
    """An app of the test's own, in a process on the CPU where no model lives yet."""
    monkeypatch.setattr(_state, "_on_app_finalizers", set())  # other tests' tasks would join
    monkeypatch.setattr(registry, "_instances", {})
    monkeypatch.setattr(registry, "_device", "cpu")
    return Celery("shop", set_as_current=False)


def test_clock_stands_still_until_told():
    """Looking at it takes no time."""
    clock = ManualClock()

    assert [0.0, 0.0] == [clock(), clock()]


def test_clock_advances_by_what_it_is_told():
    """Steps add up, and each tells the time it led to."""
    clock = ManualClock(100.0)

    assert 100.5 == clock.advance(0.5)
    assert 100.5 == clock.advance(0)
    assert 102.5 == clock.advance(2) == clock()
    assert "<ManualClock at 102.5 s>" == repr(clock)


@pytest.mark.parametrize("seconds", [-0.001, math.nan, -math.inf])
def test_clock_never_runs_backwards(seconds: float):
    """It is monotonic, as the clock it stands in for."""
    clock = ManualClock(5.0)
    with pytest.raises(ValueError, match="seconds: must be 0 or more, got"):
        clock.advance(seconds)

    assert 5.0 == clock()


@pytest.mark.parametrize("model", [EchoModel(), PoisonModel("x"), HungryModel(3)])
def test_doubles_answer_each_item_with_itself(model: Model):
    """Where nothing is wrong, each of them is an echo, in a list of its own."""
    batch = ["a", None, [1]]
    answers = model.predict(batch)

    assert batch == answers
    assert batch is not answers


def test_poison_fails_whatever_batch_it_is_in():
    """An item equal to the poison spoils the batch, wherever it stands."""
    model = PoisonModel(poison={"text": ""})

    assert [{"text": "a"}] == model.predict([{"text": "a"}])
    for batch in ([{"text": ""}], ["a", {"text": ""}], [{"text": ""}, "a"]):
        with pytest.raises(ValueError, match=r"cannot digest \{'text': ''\}"):
            model.predict(batch)


def test_hunger_begins_above_the_limit():
    """As many items as there is room for are fine; one more is out of memory."""
    model = HungryModel(limit=2)

    assert [1, 2] == model.predict([1, 2])
    with pytest.raises(MemoryError, match="out of memory: 3 items, room for 2"):
        model.predict([1, 2, 3])


@pytest.mark.parametrize(
    ("model", "item", "error"),
    [(PoisonModel, "poison", ValueError), (HungryModel, "anything", None), (EchoModel, "x", None)],
)
def test_doubles_make_tasks(app: Celery, model: type[Model], item: str, error: Any):
    """A worker can construct each of them, and the task behaves as its model does."""
    task = model.as_task(app, name="shop.double")

    assert "fine" == task("fine")
    if error is None:
        assert item == task(item)
    else:
        with pytest.raises(error):
            task(item)


def test_doubles_of_your_own_set_their_arguments(app: Celery):
    """A subclass says what spoils it, since a worker constructs it without arguments."""

    class EmptyText(PoisonModel):
        def __init__(self) -> None:
            super().__init__(poison="")

    task = EmptyText.as_task(app, name="shop.text")

    assert "poison" == task("poison")
    with pytest.raises(ValueError, match="cannot digest ''"):
        task("")


@pytest.fixture
def double(app: Celery) -> Any:
    """A batch task without a worker."""
    app.conf.update(broker_url="memory://", result_backend="cache+memory://")

    @app.task(base=BatchTask, name="shop.double")
    def double(x):
        return [2 * each for each in x]

    return double


_CALLS = {
    "delay": lambda task: task.delay(1),
    "delay_many": lambda task: task.delay_many([1, 2]),
    "delay_rows": lambda task: task.delay_rows([1, 2]),
    "adelay": lambda task: asyncio.run(task.adelay(1)),
    "predict": lambda task: predict(task, [1, 2], timeout=1),
    "apredict": lambda task: asyncio.run(apredict(task, [1, 2], timeout=1)),
}


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("call", _CALLS)
def test_full_queue_refuses_every_call(app: Celery, double: Any, call: str, eager: bool):  # noqa: FBT001
    """However it is called, and wherever it would run; afterwards calls are sent again."""
    app.conf.task_always_eager = eager
    with full_queue(double, retry_after=3.0), pytest.raises(QueueFull) as refused:
        _CALLS[call](double)

    assert 3.0 == refused.value.retry_after
    assert double.delay(1).id


@pytest.mark.parametrize("eager", [False, True])
def test_no_worker_answers_nobody(app: Celery, double: Any, eager: bool):  # noqa: FBT001
    """Calls wait until their deadline, and nothing is left of them."""
    app.conf.task_always_eager = eager
    with no_worker(app):
        with pytest.raises(DeadlineExceeded):
            predict(double, [1, 2], timeout=0.1)
        assert not double.is_served()

    assert 0 == app.control.purge()
    assert eager == app.conf.task_always_eager


def test_no_worker_wants_a_broker_of_its_own(app: Celery):
    """Calls are never sent where a real worker may read them."""
    app.conf.broker_url = "redis://localhost"
    with pytest.raises(ConfigurationError, match="memory://") as raised, no_worker(app):
        pass

    assert "and has redis://localhost" in str(raised.value)
    assert "CELERY_BROKER_URL" not in str(raised.value)


def test_no_worker_names_a_broker_of_the_environment(monkeypatch: pytest.MonkeyPatch):
    """Celery takes it before the setting."""
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://:secret@elsewhere/3")
    app = Celery("sent elsewhere", broker="memory://", set_as_current=False)
    with pytest.raises(ConfigurationError, match="_URL is set") as raised, no_worker(app):
        pass

    assert "redis://:**@elsewhere/3" in str(raised.value)
