"""The class `Model` with `collate` and `uncollate`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from celery import Celery, _state

from celery_batch import ConfigurationError, LoadFailed, Model, ThreadedStreamer
from celery_batch.runtime import registry
from celery_batch.worker.executor.loader import load_models


class Product(Model):
    """Multiplies the two arguments of each call."""

    def collate(self, left: list[int], *, right: list[int]) -> tuple[Any, Any]:
        """Make arrays."""
        return np.array(left), np.array(right)

    def predict(self, batch: tuple[Any, Any]) -> Any:
        """Multiply."""
        left, right = batch
        return left * right

    def uncollate(self, output: Any) -> list[str]:
        """Return texts."""
        return [f"{each}" for each in output]


class Doubled(Model):
    """Doubles arrays of one number, and refuses 13."""

    calls: list[Any]

    def load(self, device: str) -> None:  # noqa: ARG002 (the model's signature)
        """Remember the calls."""
        self.calls = []

    def examples(self) -> list[int]:
        """Warm up with a number."""
        return [7]

    def collate(self, batch: list[int]) -> Any:
        """Make an array."""
        self.calls.append(list(batch))
        if 13 in batch:
            raise ValueError("13 cannot be collated")
        return np.array(batch)

    def predict(self, batch: Any) -> Any:
        """Double."""
        assert isinstance(batch, np.ndarray)
        return 2 * batch


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Celery:
    """An app of the test's own, in a process without models."""
    monkeypatch.setattr(_state, "_on_app_finalizers", set())
    monkeypatch.setattr(registry, "_instances", {})
    monkeypatch.setattr(registry, "_key_options", {})
    monkeypatch.setattr(registry, "_warm_ups", {})
    monkeypatch.setattr(registry, "_device", "cpu")
    return Celery("shop", set_as_current=False)


def test_task_takes_what_collate_takes(app: Celery):
    """The parameters are those of `collate`, and `predict` gets one value."""
    task = Product.as_task(app)

    assert "6" == task(2, right=3)
    assert "6" == task.apply((2,), {"right": 3}).get()
    assert ["6", "20"] == task.run_batch([2, 4], right=[3, 5])
    with pytest.raises(TypeError, match="positional"):
        task(2, 3)


def test_eager_chunk_is_isolated_row_by_row(app: Celery):
    """An eager call goes through all stages, and a row that cannot be collated fails alone."""
    app.conf.task_always_eager = True
    task = Doubled.as_task(app, max_batch_size=4)

    assert [2, 4, 6] == task.delay_rows([1, 2, 3]).get()
    result = task.delay_rows([1, 13, 3])
    assert [2, None, 6] == result.result.outputs
    assert "13 cannot be collated" in str(result.result)


def test_collate_gets_one_value_of_a_key(app: Celery):
    """A parameter by which batches are formed is one value for `collate`."""

    class Translator(Model):
        batch_by = "lang"

        def collate(self, text: list[str], lang: str) -> tuple[str, Any]:
            return lang, np.array(text)

        def predict(self, batch: tuple[str, Any]) -> list[str]:
            lang, text = batch
            return [f"{each} in {lang}" for each in text]

    task = Translator.as_task(app)

    assert "bread in de" == task("bread", lang="de")
    assert ["bread in de", "milk in de"] == task.run_batch(["bread", "milk"], lang="de")


def test_rows_of_an_array_stay_arrays(app: Celery):
    """`outputs` is about what the last stage returns."""

    class Pairs(Model):
        def collate(self, batch: list[int]) -> Any:
            return np.array(batch)

        def predict(self, batch: Any) -> Any:
            return np.stack([batch, batch], axis=1)

    class Halves(Pairs):
        def uncollate(self, output: Any) -> Any:
            return output / 2

    arrays, lists = Pairs.as_task(app), Halves.as_task(app, name="lists", outputs="lists")
    halves = Halves.as_task(app, name="halves")

    assert isinstance(arrays(3), np.ndarray)
    assert [1.5, 1.5] == halves(3).tolist()
    assert [1.5, 1.5] == lists(3)


def test_each_array_of_a_list_becomes_a_list(app: Celery):
    """With `outputs="lists"` a model may return a list of arrays of unlike lengths."""

    class Ranges(Model):
        def uncollate(self, output: Any) -> Any:
            return output

        def predict(self, batch: list[int]) -> Any:
            return [np.arange(each) for each in batch]

    class Bare(Model):
        predict = Ranges.predict

    staged = Ranges.as_task(app, name="staged", outputs="lists")
    bare = Bare.as_task(app, name="bare", outputs="lists")

    assert [[], [0, 1]] == staged.run_batch([0, 2])
    assert [[0], [0, 1, 2]] == bare.run_batch([1, 3])
    assert [0, 1] == staged(2) == bare(2)


def test_uncollate_needs_no_collate(app: Celery):
    """A model may take its outputs apart in a stage of its own, and its inputs as they are."""

    class Summed(Model):
        def predict(self, left: list[int], right: list[int]) -> dict[str, Any]:
            return {"sums": np.array(left) + np.array(right)}

        def uncollate(self, output: dict[str, Any]) -> list[int]:
            return output["sums"].tolist()

    task = Summed.as_task(app)

    assert 5 == task(2, 3)
    assert [5, 7] == task.run_batch([2, 3], [3, 4])


def test_examples_are_collated(app: Celery):
    """A model is warmed up through all stages, with its examples or with each size."""
    Doubled.as_task(app, name="free", max_batch_size=4)
    load_models(app, ["free"])
    free = registry.instance_of(Doubled).calls
    registry.unload_all()
    Doubled.as_task(app, name="fixed", batch_sizes=(1, 4))
    load_models(app, ["fixed"])

    assert [[7]] == free
    assert [[7] * 4, [7], [7]] == registry.instance_of(Doubled).calls


def test_example_that_cannot_be_collated_is_a_failed_start(app: Celery):
    """The worker does not take tasks that would fail."""

    class Broken(Doubled):
        def examples(self) -> list[int]:
            return [13]

    Broken.as_task(app, name="broken")
    with pytest.raises(LoadFailed, match="13 cannot be collated"):
        load_models(app, ["broken"])


def test_stages_with_several_parameters_are_refused(app: Celery):
    """What a stage returns is one value, which the next one takes."""

    class Spread(Model):
        def collate(self, batch: list[Any]) -> Any:
            return batch, batch

        def predict(self, left: Any, right: Any) -> Any:
            return [left, right]

    class Late(Model):
        def predict(self, batch: list[Any]) -> Any:
            return batch

        def uncollate(self) -> Any:
            return []

    with pytest.raises(
        ConfigurationError, match=r"Spread\.predict: gets what collate returns, as its one argument"
    ):
        Spread.as_task(app)
    with pytest.raises(
        ConfigurationError, match=r"Late\.uncollate: gets what predict returns, as its one argument"
    ):
        Late.as_task(app)
    with pytest.raises(ConfigurationError, match=r"Spread\.predict: gets what collate returns"):
        ThreadedStreamer(Spread, 4)
