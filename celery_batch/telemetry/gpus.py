"""What NVIDIA's own library says of the GPUs, where it is installed and there are any."""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

from celery_batch.errors import ConfigurationError
from celery_batch.runtime.devices import VISIBLE, visible_entries, visible_entry

__all__ = ["Gpus", "find_gpus"]

logger = logging.getLogger(__name__)

#: Seconds in which CUDA has to say what it calls its GPUs; it wakes all of them first.
_ASKED = 60.0

#: In a process of its own: processes that are forked after CUDA was woken cannot use it.
_TELL_PLACES = """
from ctypes import CDLL, byref, c_int, create_string_buffer
cuda = CDLL("libcuda.so.1")
def must(status):
    if status:
        raise SystemExit(f"CUDA error {status}")
count, device, place = c_int(), c_int(), create_string_buffer(32)
must(cuda.cuInit(0))
must(cuda.cuDeviceGetCount(byref(count)))
for ordinal in range(count.value):
    must(cuda.cuDeviceGet(byref(device), ordinal))
    must(cuda.cuDeviceGetPCIBusId(place, len(place), device))
    print(place.value.decode())
"""


class Gpus:
    """
    The GPUs that a worker may use.

    Args:
        nvml: The module `pynvml`, after its ``nvmlInit``, or a double.
        handles: Of the GPUs, by how CUDA calls them.
    """

    def __init__(self, nvml: Any, handles: Mapping[str, Any]) -> None:
        self._nvml = nvml
        self._handles = handles

    def families(self) -> Iterator[Metric]:
        """Write down for each GPU how busy it is, and how full, if it tells."""
        busy = GaugeMetricFamily(
            "celery_batch_gpu_utilization_ratio",
            "Share of the last moments in which the GPU computed something.",
            labels=["gpu"],
        )
        used = GaugeMetricFamily(
            "celery_batch_gpu_memory_used_bytes", "Memory in use, by anybody.", labels=["gpu"]
        )
        total = GaugeMetricFamily(
            "celery_batch_gpu_memory_total_bytes", "Memory of the GPU.", labels=["gpu"]
        )
        for gpu, handle in self._handles.items():
            try:
                memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
                used.add_metric([gpu], memory.used)
                total.add_metric([gpu], memory.total)
                rates = self._nvml.nvmlDeviceGetUtilizationRates(handle)
                busy.add_metric([gpu], rates.gpu / 100)
            except self._nvml.NVMLError as error:  # a slice of a GPU has no rates, for one
                logger.debug("GPU %s does not tell: %s", gpu, error)
        yield from (busy, used, total)


def find_gpus(devices: Sequence[str] | None = None) -> Gpus | None:
    """
    Return the GPUs that this worker may use; None if nothing can be said of any.

    Args:
        devices: Names as for `celery_batch.runtime.devices.pin`; unless given, all that
            ``CUDA_VISIBLE_DEVICES`` shows.
    """
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception as error:  # noqa: BLE001 (no library, no driver, no GPU: all the same)
        logger.debug("No GPU to tell of: %s", error)
        return None
    machine = _Machine(nvml)
    handles = {}
    for name in machine.visible() if devices is None else _chosen(devices):
        try:
            handles[name] = machine.handle(name)
        except (nvml.NVMLError, ValueError, LookupError) as error:
            logger.debug("No GPU %s to tell of: %s", name, error)
    return Gpus(nvml, handles) if handles else None


def _chosen(devices: Sequence[str]) -> list[str]:
    """Return what ``CUDA_VISIBLE_DEVICES`` has to say to show these GPUs."""
    names = []
    for device in devices:
        if device.startswith("cuda:"):
            with suppress(ConfigurationError):  # whoever loads a model there is told
                names.append(visible_entry(device))
    return names


class _Machine:
    """
    The GPUs of this machine, and how CUDA calls them.

    Args:
        nvml: The module `pynvml`, after its ``nvmlInit``, or a double.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._gpus: list[Any] = []
        for index in range(nvml.nvmlDeviceGetCount()):
            with suppress(nvml.NVMLError):  # one that is lost, or not ours
                self._gpus.append(nvml.nvmlDeviceGetHandleByIndex(index))

    def visible(self) -> list[str]:
        """Return how CUDA calls the GPUs that this process may use."""
        visible = os.environ.get(VISIBLE)
        return [*map(str, range(len(self._gpus)))] if visible is None else visible_entries(visible)

    def handle(self, name: str) -> Any:
        """
        Return the library's handle of a GPU.

        Args:
            name: A number or an id, as in ``CUDA_VISIBLE_DEVICES``.
        """
        if name.startswith("GPU-"):
            name = next((full for full in self._ids if full.startswith(name)), name)
        if name.startswith(("GPU-", "MIG-")):
            return self._nvml.nvmlDeviceGetHandleByUUID(name)
        return self._numbered[int(name)]

    @cached_property
    def _ids(self) -> list[str]:
        return [self._nvml.nvmlDeviceGetUUID(gpu) for gpu in self._gpus]

    @cached_property
    def _numbered(self) -> list[Any]:
        """The GPUs in CUDA's order: by their slots where all are alike, else the fastest first."""
        nvml = self._nvml
        by_slot = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
        if by_slot or len({nvml.nvmlDeviceGetName(gpu) for gpu in self._gpus}) <= 1:
            return sorted(self._gpus, key=self._slot)
        try:
            return [nvml.nvmlDeviceGetHandleByPciBusId(place) for place in _ask_cuda()]
        except (nvml.NVMLError, OSError, subprocess.SubprocessError) as error:
            logger.warning(
                "Metrics leave out the GPUs that have only a number: this machine's GPUs differ,"
                " and CUDA does not say in which order it numbers them (%s); name them by their"
                " ids, or set CUDA_DEVICE_ORDER=PCI_BUS_ID",
                error,
            )
            return []

    def _slot(self, gpu: Any) -> tuple[int, int, int]:
        place = self._nvml.nvmlDeviceGetPciInfo(gpu)
        return place.domain, place.bus, place.device


def _ask_cuda() -> list[str]:
    """Return the PCI places of all GPUs in CUDA's order."""
    env = {name: value for name, value in os.environ.items() if name != VISIBLE}
    said = subprocess.run(  # noqa: S603 (our own interpreter, and a program of ours)
        [sys.executable, "-I", "-S", "-c", _TELL_PLACES],
        env=env,
        capture_output=True,
        text=True,
        check=True,
        timeout=_ASKED,
    ).stdout
    return said.split()
