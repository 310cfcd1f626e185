"""The call of a model with several stages, which run on threads beside that of the models."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest
from celery import Celery, _state

from celery_batch import Model
from celery_batch.runtime import registry
from celery_batch.telemetry.otel import BatchSpan
from celery_batch.worker.dispatch.payload import BatchPayload, Delivery
from celery_batch.worker.executor import model_call
from celery_batch.worker.executor.model_call import ModelCall
from celery_batch.worker.executor.time_limit import SoftLimit

_numbers = count(1)


class Numbered(Model):
    """Says which instance has run each stage."""

    def load(self, device: str) -> None:  # noqa: ARG002 (the model's signature)
        """Take a number."""
        self.number, self.is_loaded = next(_numbers), True

    def collate(self, batch: list[int]) -> tuple[list[int], int]:
        """Add the number to the items."""
        return batch, self.number

    def predict(self, batch: tuple[list[int], int]) -> tuple[int, ...]:
        """Say which instances these are."""
        items, collated = batch
        if 13 in items:
            raise RuntimeError("CUDA error: device-side assert triggered")
        return (collated, self.number, len(items))

    def uncollate(self, output: tuple[int, ...]) -> list[Any]:
        """Answer each item with the instances, and whether the last one is still loaded."""
        *instances, items = output
        return [[*instances, self.number, self.is_loaded]] * items

    def unload(self) -> None:
        """Be no longer loaded."""
        self.is_loaded = False


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    """An app in a process whose device works, and that has loaded no model."""
    monkeypatch.setattr(_state, "_on_app_finalizers", set())
    monkeypatch.setattr(registry, "_instances", {})
    monkeypatch.setattr(registry, "_standby", {})
    monkeypatch.setattr(registry, "_device", "cpu")
    monkeypatch.setattr(model_call, "_broken", None)
    yield Celery("numbered", set_as_current=False)
    registry.unload_all()


def make_call(app: Celery, *items: int) -> ModelCall:
    """Return the call of a batch."""
    task = app.tasks.get("numbered") or Numbered.as_task(app, name="numbered")
    rows = [(item,) for item in items]
    deliveries = [Delivery(str(item), {}, ([item], {}, {}), None, None) for item in items]
    return ModelCall(task, BatchPayload(deliveries), deliveries, rows, BatchSpan(task.name), ())


def test_all_stages_of_a_batch_have_one_instance(app: Celery):
    """Another one that is swapped in between is the next batch's, and the old one stays loaded."""
    call = make_call(app, 1, 2)
    with ThreadPoolExecutor(1) as beside, ThreadPoolExecutor(1) as reloading:
        beside.submit(call.prepare).result(60)
        old = registry.instance_of(Numbered)
        registry.load_again(Numbered)
        swapped = reloading.submit(registry.swap_in, Numbered)
        while registry.instance_of(Numbered) is old:
            pass
        call(SoftLimit(None))
        outcomes = beside.submit(call.outcomes).result(60)
        call.release()
        swapped.result(60)

    assert [[old.number] * 3 + [True]] * 2 == [each.value for each in outcomes]
    assert not old.is_loaded
    later = make_call(app, 1)
    later(SoftLimit(None))
    assert later.outcomes()[0].value[0] != old.number
    later.release()


def test_batch_that_was_prepared_does_not_run_on_a_broken_device(app: Celery):
    """The batch before has broken it; all requests of the prepared one run elsewhere."""
    bad, prepared = make_call(app, 12, 13), make_call(app, 1, 2)
    prepared.prepare()
    bad(SoftLimit(None))
    prepared(SoftLimit(None))

    assert "device-side assert" in str(model_call.broken_device())
    assert [True, True] == [each.again for each in prepared.outcomes()]
    bad.release()
    prepared.release()
