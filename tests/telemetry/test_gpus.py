"""GPU metrics, with a double of NVIDIA's library."""

from __future__ import annotations

import sys

import pytest

from celery_batch.telemetry.gpus import find_gpus
from tests.services.nvml import pynvml

#: A small GPU in the first slot, a large one in the second.
MIXED = [pynvml.Gpu("GPU-small", 1, "T4", 16), pynvml.Gpu("GPU-large", 65, "H200", 140)]


@pytest.fixture(autouse=True)
def _double(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", pynvml)
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)


def metrics(*devices: str) -> dict[tuple[str, str], float]:
    """Return the metrics of a worker's GPUs, by the names of GPU and metric."""
    gpus = find_gpus(devices or None)
    if gpus is None:
        return {}
    return {
        (sample.labels["gpu"], sample.name.removeprefix("celery_batch_gpu_")): sample.value
        for family in gpus.families()
        for sample in family.samples
    }


def memory(*devices: str) -> dict[str, int]:
    """Return the GiB of each GPU."""
    name = "memory_total_bytes"
    return {
        gpu: int(value) >> 30 for (gpu, what), value in metrics(*devices).items() if what == name
    }


def test_gpu_without_metrics_is_left_out():
    """One GPU is 87 % busy; the other has no metrics, which does not matter for the first."""
    assert {
        ("0", "utilization_ratio"): 0.87,
        ("0", "memory_used_bytes"): 6 << 30,
        ("0", "memory_total_bytes"): 80 << 30,
    } == metrics()


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        ("0", {"0"}),
        ("GPU-first", {"GPU-first"}),
        ("GPU-fi", {"GPU-fi"}),
        ("1, 0", {"0"}),
        ("1", set()),
        ("7,GPU-third,MIG-4", set()),
        ("", set()),
    ],
)
def test_only_visible_gpus_have_metrics(visible: str, names: set[str], monkeypatch):
    """``CUDA_VISIBLE_DEVICES`` chooses by number or by id, which may be shortened."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert names == {name for name, _ in metrics()}


@pytest.mark.parametrize(
    ("visible", "devices", "found"),
    [
        (None, ["cuda:1"], {"1": 140}),
        (None, ["cuda:1", "cpu", "cuda:1"], {"1": 140}),
        (None, ["cpu"], {}),
        (None, ["cuda:GPU-large"], {"GPU-large": 140}),
        ("1", ["cuda:0"], {"1": 140}),
        ("1", ["cuda:1"], {}),
    ],
)
def test_batch_devices_choose_among_what_is_visible(visible, devices, found, monkeypatch):
    """GPUs that the setting leaves out are not the worker's."""
    monkeypatch.setattr(pynvml, "GPUS", MIXED[::-1])
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert found == memory(*devices)


def test_numbers_follow_the_slots_with_pci_bus_id(monkeypatch):
    """With ``CUDA_DEVICE_ORDER=PCI_BUS_ID``, also if the GPUs differ."""
    monkeypatch.setattr(pynvml, "GPUS", MIXED[::-1])
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")

    assert {"0": 16, "1": 140} == memory()


def test_unknown_numbers_have_no_metrics(monkeypatch, caplog):
    """If GPUs differ a numbered one has no metrics, rather than those of another."""
    monkeypatch.setattr(pynvml, "GPUS", MIXED)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,GPU-small")

    assert {"GPU-small": 16} == memory()
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in caplog.text


def test_no_metrics_without_a_driver(monkeypatch: pytest.MonkeyPatch):
    """Without a driver or the library there are no metrics."""

    def no_driver() -> None:
        raise pynvml.NVMLError("Driver Not Loaded")

    monkeypatch.setattr(pynvml, "nvmlInit", no_driver)

    assert find_gpus() is None

    monkeypatch.setitem(sys.modules, "pynvml", None)

    assert find_gpus() is None
