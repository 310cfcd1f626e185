"""The models that live in this process, each loaded once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from celery_batch import ConfigurationError, LoadFailed, Model, WrongResultCount
from celery_batch.runtime import devices, registry
from celery_batch.runtime.registry import instance_of, unload_all
from celery_batch.testing import EchoModel, HungryModel


@pytest.fixture(autouse=True)
def empty_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process without models and device; it is restored after the test."""
    monkeypatch.setattr(registry, "_instances", {})
    monkeypatch.setattr(registry, "_device", None)
    monkeypatch.setattr(devices, "discover", lambda: ["cpu"])
    yield
    unload_all()


@pytest.fixture
def diary() -> list[Any]:
    """What the models of a test did, in order."""
    return []


@pytest.fixture
def reaper(diary: list[Any]) -> type[Model]:
    """A model that keeps a diary of its life."""

    class Keeper(EchoModel):
        def load(self, device: str) -> None:
            diary.append(("load", device))

        def examples(self) -> list[str]:
            return ["first", "second"]

        def predict(self, batch: list[Any]) -> Any:
            diary.append(("predict", *batch))
            return super().predict(batch)

        def unload(self) -> None:
            diary.append(("unload",))

    return Keeper


def failing(**hooks: Callable[..., Any]) -> type[Model]:
    """Make a model of which some part goes wrong."""
    return type("Failing", (EchoModel,), hooks)


def explode(*_: Any) -> Any:
    """Go wrong in a way of the user's own."""
    raise OSError("no such file: weights.bin")


def test_each_model_lives_for_itself(reaper: type[Model]):
    """Two classes are two models, also where one extends the other."""
    other = type("Other", (reaper,), {})

    assert type(instance_of(reaper)) is reaper
    assert type(instance_of(other)) is other


def test_process_that_settled_nowhere_picks_its_own_device(reaper: type[Model], diary: list[Any]):
    """Outside a worker the first device there is will do."""
    instance_of(reaper)

    assert ("load", "cpu") == diary[0]


class Register(dict):
    """The residents of a process, with a count of how often they were looked up."""

    looks = 0

    def get(self, model: type[Model]) -> Model | None:
        """Look one up."""
        self.looks += 1
        return super().get(model)


def test_threads_that_ask_at_once_share_one_load(diary: list[Any], monkeypatch: pytest.MonkeyPatch):
    """While one thread loads a model the others wait for it, and all get the same."""
    register = Register()
    monkeypatch.setattr(registry, "_instances", register)

    class Slow(EchoModel):
        def load(self, device: str) -> None:
            diary.append(("load", device))
            # Until the others have looked in vain as well (this thread has looked twice).
            end = time.monotonic() + 5
            while register.looks < 4 and time.monotonic() < end:
                time.sleep(0.001)

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(instance_of, [Slow] * 3))

    assert [("load", "cpu")] == diary
    assert [instance_of(Slow)] * 3 == found


def leave_the_process(*_: Any) -> Any:
    """Do as a script does that finds something wrong."""
    raise SystemExit("no licence")


@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        (explode, OSError, "OSError: no such file: weights.bin"),
        (leave_the_process, SystemExit, "SystemExit: no licence"),
    ],
)
@pytest.mark.parametrize("hook", ["__init__", "load", "examples", "predict"])
def test_whatever_fails_before_the_first_task_is_a_failed_load(
    hook: str, how: Callable[..., Any], kind: type[BaseException], words: str
):
    """The error names model, device and what went wrong, and keeps the original."""
    model = failing(**{"examples": lambda _: ["example"], hook: how})
    with pytest.raises(LoadFailed) as failure:
        instance_of(model)

    if hook == "predict":
        words = f"Failing.predict: {words} (in the warm-up with the example 'example')"
    assert f"Failing on cpu: {words}" == str(failure.value)
    assert isinstance(failure.value.__cause__, kind)


def test_example_that_fails_alone_is_a_failed_load():
    """An error in one example's place is as bad as one for all."""
    model = failing(
        examples=lambda _: [1, 2], predict=lambda _, batch: [batch[0], KeyError("the second")]
    )
    with pytest.raises(
        LoadFailed, match=r"KeyError: .the second. .in the warm-up with the example 2, one of 2"
    ):
        instance_of(model)


def test_wrong_count_while_warming_up_names_the_model():
    """One of our own errors is not announced by its type, its message says it all."""
    model = failing(examples=lambda _: [1, 2], predict=lambda _, batch: batch[:1])
    with pytest.raises(LoadFailed, match=r"^Failing on cpu: Failing\.predict returned 1 outputs"):
        instance_of(model)
    with pytest.raises(LoadFailed) as failure:
        instance_of(model)

    assert isinstance(failure.value.__cause__, WrongResultCount)


def test_warm_up_beyond_the_memory_is_a_failed_load():
    """A model that cannot hold its own examples is not ready."""

    class Hungry(HungryModel):
        def examples(self) -> range:
            return range(9)

    with pytest.raises(
        LoadFailed, match="9 items do not fit into memory: out of memory: 9 items, room for 8"
    ):
        instance_of(Hungry)


def test_failed_load_can_be_tried_again(reaper: type[Model], monkeypatch: pytest.MonkeyPatch):
    """What failed does not live here, and a later try that goes well does."""
    with monkeypatch.context() as broken:
        broken.setattr(reaper, "load", explode)
        with pytest.raises(LoadFailed):
            instance_of(reaper)

    assert isinstance(instance_of(reaper), reaper)


def test_device_that_cannot_be_had_is_told_as_such(
    reaper: type[Model], monkeypatch: pytest.MonkeyPatch
):
    """The error is about the device; no model has been tried."""
    monkeypatch.setattr(devices, "discover", lambda: ["toaster"])
    with pytest.raises(ConfigurationError, match="'toaster' is no device"):
        instance_of(reaper)


def test_moving_out_unloads_everybody_once(reaper: type[Model], diary: list[Any]):
    """Afterwards the process is empty, and a new question loads anew."""
    first = instance_of(reaper)
    unload_all()
    unload_all()

    assert 1 == diary.count(("unload",))
    assert first is not instance_of(reaper)


@pytest.mark.parametrize(
    ("how", "words"),
    [(explode, "no such file: weights.bin"), (leave_the_process, "SystemExit: no licence")],
)
def test_unload_that_fails_stops_nobody_else(
    reaper: type[Model],
    diary: list[Any],
    caplog: pytest.LogCaptureFixture,
    how: Callable[..., Any],
    words: str,
):
    """Its error is logged by name, and the others are unloaded all the same."""
    for model in (reaper, failing(unload=how), type("Last", (reaper,), {})):
        instance_of(model)
    unload_all()

    assert 2 == diary.count(("unload",))
    assert ["Failing.unload failed"] == [record.getMessage() for record in caplog.records]
    assert words in caplog.text


def test_a_model_on_a_gpu_that_no_machine_has(
    reaper: type[Model],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """The device is a name alone, and the log says so."""
    monkeypatch.setattr(devices, "Path", lambda _: tmp_path)
    with caplog.at_level(logging.INFO, logger=registry.logger.name):
        registry.warm(reaper, "Keeper", "cuda:0")

    assert "Keeper is warm on cuda:0 (no GPU can be seen on this machine: " in caplog.messages[-1]
