"""Regressions: each test failed before its fix."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from celery import Celery, _state, signals
from celery.app.trace import trace_task
from celery.backends.cache import _DUMMY_CLIENT_CACHE as _CACHE

from celery_batch import BatchTask, ConfigurationError, WrongResultCount
from celery_batch.runtime import registry
from celery_batch.runtime.runner import Runner
from celery_batch.testing import EchoModel


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Tasks of one test are not shared with the apps of the next."""
    monkeypatch.setattr(_state, "_on_app_finalizers", set())


def double(x):
    """Double each number."""
    return [value * 2 for value in x]


def test_class_based_task_with_autoretry():
    """`autoretry_for` on a class keeps the single-item face."""

    class Double(BatchTask):
        name = "shop.double"
        autoretry_for = (KeyError,)

        def run(self, x):
            return double(x)

    task = Celery("shop", set_as_current=False).register_task(Double())

    assert 42 == task(21)


def test_set_of_outputs_is_refused():
    """A set has no order: outputs cannot be matched with items."""
    (first, _) = Runner(lambda _: {"bb", "aa"}, "shop.model").run(["a", "b"])

    assert isinstance(first.error, WrongResultCount)


def test_table_that_is_longer_than_wide_is_refused():
    """len() of a DataFrame counts rows, iterating it gives columns."""

    class Frame:
        def __len__(self):
            return 2

        def __iter__(self):
            return iter(["only column"])

    outcomes = Runner(lambda _: Frame(), "shop.model").run(["a", "b"])

    assert 2 == len(outcomes)


def test_wrong_option_is_refused_on_every_use():
    """The second use of a wrongly declared task raises the same error."""
    app = Celery("shop", set_as_current=False)
    task = app.task(base=BatchTask, name="shop.t", max_batch_sise=3)(double)
    for _ in range(2):
        with pytest.raises(ConfigurationError):
            task(1)


def test_private_names_are_no_hints():
    """The hint names an option that a user may write."""
    app = Celery("shop", set_as_current=False)
    with pytest.raises(ConfigurationError) as refused:
        app.task(base=BatchTask, name="shop.t", user_options=3)(double)(1)

    assert "_exec_options" not in str(refused.value)


def test_second_model_on_first_use_finds_the_same_gpu(monkeypatch):
    """Where no worker pinned the process, the first load did; CUDA is awake by the second."""
    monkeypatch.setattr(registry, "_instances", {})
    monkeypatch.setattr(registry, "_device", None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    awake = []
    cuda = SimpleNamespace(is_initialized=lambda: bool(awake))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))

    class First(EchoModel):
        def load(self, device):
            awake.append(device)

    registry.instance_of(First)

    assert registry.instance_of(EchoModel)


@pytest.fixture
def sending_app():
    """An app whose messages and results stay in this process."""
    _CACHE.clear()
    with Celery("found", broker="memory://", backend="cache+memory://") as app:
        yield app


RUNS = []


def retried(self, x):
    """Ask for another try the first time."""
    RUNS.append(x)
    if len(RUNS) == 1:
        raise self.retry(countdown=0)
    return x


def test_retry_in_a_stock_worker_sends_one_message(sending_app):
    """A worker without our strategy retries a batch of one once, not twice."""
    sent = []

    def note(headers, **_):
        sent.append(headers["retries"])

    RUNS.clear()
    signals.before_task_publish.connect(note, weak=False)
    task = sending_app.task(base=BatchTask, bind=True, name="found.again")(retried)
    request = {"id": "a", "task": task.name, "delivery_info": {}, "is_eager": False, "retries": 0}
    trace_task(task, "a", (1,), {}, request | {"called_directly": False}, app=sending_app)
    signals.before_task_publish.disconnect(note)

    assert [1] == sent
