"""What NVIDIA's library says of GPUs, with a double of it."""

from __future__ import annotations

import sys

import pytest

from celery_batch.telemetry.gpus import find_gpus
from tests.services.nvml import pynvml


@pytest.fixture(autouse=True)
def _double(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", pynvml)


def told(environ: dict[str, str]) -> dict[tuple[str, str], float]:
    """Return what is told of each GPU that a worker may use, by its name and the metric's."""
    gpus = find_gpus(environ)
    if gpus is None:
        return {}
    return {
        (sample.labels["gpu"], sample.name.removeprefix("celery_batch_gpu_")): sample.value
        for family in gpus.families()
        for sample in family.samples
    }


def test_each_gpu_tells_what_it_can():
    """One is 87 % busy; the other, which tells nothing, takes nothing from it."""
    assert {
        ("0", "utilization_ratio"): 0.87,
        ("0", "memory_used_bytes"): 6 << 30,
        ("0", "memory_total_bytes"): 80 << 30,
    } == told({})


@pytest.mark.parametrize(
    ("visible", "names"),
    [("0", {"0"}), ("GPU-first", {"GPU-first"}), ("1, 0", {"0"}), ("1", set()), ("", set())],
)
def test_only_the_workers_own_gpus_are_told_of(visible: str, names: set[str]):
    """``CUDA_VISIBLE_DEVICES`` chooses, by number or by id."""
    assert names == {name for name, _ in told({"CUDA_VISIBLE_DEVICES": visible})}


def test_nothing_is_told_without_a_driver(monkeypatch: pytest.MonkeyPatch):
    """Where the library finds no driver, or is not installed, there is nothing to tell."""

    def no_driver() -> None:
        raise pynvml.NVMLError("Driver Not Loaded")

    monkeypatch.setattr(pynvml, "nvmlInit", no_driver)

    assert find_gpus({}) is None

    monkeypatch.setitem(sys.modules, "pynvml", None)

    assert find_gpus({}) is None
