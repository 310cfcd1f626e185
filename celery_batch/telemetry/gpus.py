"""GPU metrics, from NVIDIA's library where it is installed."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

from celery_batch.errors import ConfigurationError
from celery_batch.runtime.devices import VISIBLE, visible_entries, visible_entry

__all__ = ["Gpus", "find_gpus"]

logger = logging.getLogger(__name__)


class Gpus:
    """The GPUs that a worker may use, as NVML's handles by CUDA's names for them."""

    def __init__(self, nvml: Any, handles: Mapping[str, Any]) -> None:
        self._nvml = nvml
        self._handles = handles

    def families(self) -> Iterator[Metric]:
        """Yield each GPU's utilization and memory, as far as it reports them."""
        busy = GaugeMetricFamily(
            "celery_batch_gpu_utilization_ratio",
            "Share of the last sample period in which a kernel ran on the GPU.",
            labels=["gpu"],
        )
        used = GaugeMetricFamily(
            "celery_batch_gpu_memory_used_bytes", "Memory in use, by all processes.", labels=["gpu"]
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
            except self._nvml.NVMLError as error:  # a MIG slice has no utilization
                logger.debug("GPU %s has no metrics: %s", gpu, error)
        yield from (busy, used, total)


def find_gpus(devices: Sequence[str] | None = None) -> Gpus | None:
    """Return the GPUs that this worker may use, or those named; None if none can be measured."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception as error:  # noqa: BLE001 (no library, no driver, no GPU: all the same)
        logger.debug("No GPU metrics: %s", error)
        return None
    machine = _Machine(nvml)
    handles = {}
    for name in machine.visible() if devices is None else _chosen(devices):
        try:
            handles[name] = machine.handle(name)
        except (nvml.NVMLError, ValueError, LookupError) as error:
            logger.debug("No metrics of GPU %s: %s", name, error)
    return Gpus(nvml, handles) if handles else None


def _chosen(devices: Sequence[str]) -> list[str]:
    """Return the ``CUDA_VISIBLE_DEVICES`` entries of these GPUs."""
    names = []
    for device in devices:
        if device.startswith("cuda:"):
            with suppress(ConfigurationError):  # loading a model there raises it
                names.append(visible_entry(device))
    return names


class _Machine:
    """The GPUs of this machine, and CUDA's names for them."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._gpus: list[Any] = []
        for index in range(nvml.nvmlDeviceGetCount()):
            with suppress(nvml.NVMLError):  # a GPU that is lost, or that we may not use
                self._gpus.append(nvml.nvmlDeviceGetHandleByIndex(index))

    def visible(self) -> list[str]:
        """Return CUDA's names of the GPUs that this process may use."""
        visible = os.environ.get(VISIBLE)
        return [*map(str, range(len(self._gpus)))] if visible is None else visible_entries(visible)

    def handle(self, name: str) -> Any:
        """Return NVML's handle of a GPU by its number or id, as in ``CUDA_VISIBLE_DEVICES``."""
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
        """The GPUs in CUDA's order, which is by PCI slot if all are the same model."""
        by_slot = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
        if not by_slot and len({self._nvml.nvmlDeviceGetName(gpu) for gpu in self._gpus}) > 1:
            logger.warning(
                "Metrics leave out the GPUs that have only a number: this machine's GPUs differ,"
                " and CUDA numbers the fastest first; name them by their ids, or set"
                " CUDA_DEVICE_ORDER=PCI_BUS_ID"
            )
            return []
        return sorted(self._gpus, key=self._slot)

    def _slot(self, gpu: Any) -> tuple[int, int, int]:
        slot = self._nvml.nvmlDeviceGetPciInfo(gpu)
        return slot.domain, slot.bus, slot.device
