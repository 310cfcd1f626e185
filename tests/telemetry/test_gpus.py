"""GPU metrics, with a double of NVIDIA's library."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from celery_batch.telemetry.gpus import find_gpus
from tests.services.nvml import pynvml

#: A small GPU in the first slot, a large one in the second: CUDA has the large one first.
MIXED = [pynvml.Gpu("GPU-small", 1, "T4", 16), pynvml.Gpu("GPU-large", 65, "H200", 140)]


@pytest.fixture(autouse=True)
def _double(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", pynvml)
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def cuda_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a double of CUDA's library, which has the PCI bus ids of two GPUs."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("cuda")
    (folder / "cuda.c").write_text(
        """
        #include <stdio.h>
        #include <stdlib.h>
        int cuInit(unsigned flags) { return getenv("CUDA_VISIBLE_DEVICES") ? 100 : 0; }
        int cuDeviceGetCount(int *count) { *count = 2; return 0; }
        int cuDeviceGet(int *device, int ordinal) { *device = 70 + ordinal; return 0; }
        int cuDeviceGetPCIBusId(char *text, int length, int device) {
            snprintf(text, length, device == 70 ? "0000:41:00.0" : "0000:01:00.0");
            return 0;
        }
        """
    )
    library = str(folder / "libcuda.so.1")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, "cuda.c"], cwd=folder, check=True)
    return folder


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
        (None, ["cuda:1"], {"1": 16}),
        (None, ["cuda:1", "cpu", "cuda:1"], {"1": 16}),
        (None, ["cpu"], {}),
        (None, ["cuda:GPU-large"], {"GPU-large": 140}),
        ("1", ["cuda:0"], {"1": 16}),
        ("1", ["cuda:1"], {}),
    ],
)
def test_batch_devices_choose_among_what_is_visible(visible, devices, found, monkeypatch):
    """GPUs that the setting leaves out are not the worker's."""
    monkeypatch.setattr(pynvml, "GPUS", MIXED[::-1])
    monkeypatch.setattr(
        "celery_batch.telemetry.gpus._cuda_bus_ids", lambda: ["0:41:0.0", "0:01:0.0"]
    )
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert found == memory(*devices)


def test_numbers_are_cudas(monkeypatch, cuda_library: Path):
    """If GPUs differ, the fastest is number 0, whatever its slot; CUDA is asked."""
    monkeypatch.setattr(pynvml, "GPUS", MIXED)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(cuda_library))

    assert {"0": 140, "1": 16} == memory()

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")

    assert {"1": 16} == memory()


def test_numbers_follow_the_slots_with_pci_bus_id(monkeypatch):
    """With ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` CUDA is not asked."""
    monkeypatch.setattr(pynvml, "GPUS", MIXED[::-1])
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")

    assert {"0": 16, "1": 140} == memory()


def test_unknown_numbers_have_no_metrics(monkeypatch, caplog):
    """Without CUDA's order a numbered GPU has no metrics, rather than those of another."""
    monkeypatch.setattr(pynvml, "GPUS", MIXED)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")
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
