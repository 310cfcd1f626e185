"""What NVIDIA's own library says of the GPUs, where it is installed and there are any."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

__all__ = ["Gpus", "find_gpus"]

logger = logging.getLogger(__name__)


class Gpus:
    """
    The GPUs that a worker may use.

    Args:
        nvml: The module `pynvml`, after its ``nvmlInit``, or a double.
        handles: Of the GPUs, by index.
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


def find_gpus(environ: Mapping[str, str] = os.environ) -> Gpus | None:
    """
    Return the GPUs that this worker may use; None if nothing can be said of any.

    Args:
        environ: ``CUDA_VISIBLE_DEVICES`` says which, by index or by id.
    """
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception as error:  # noqa: BLE001 (no library, no driver, no GPU: all the same)
        logger.debug("No GPU to tell of: %s", error)
        return None
    handles = {}
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    names = range(nvml.nvmlDeviceGetCount()) if visible is None else visible.split(",")
    for name in (str(each).strip() for each in names):
        try:
            handles[name] = _handle(nvml, name)
        except (nvml.NVMLError, ValueError) as error:
            logger.debug("No GPU %s to tell of: %s", name, error)
    return Gpus(nvml, handles) if handles else None


def _handle(nvml: Any, name: str) -> Any:
    if name.startswith(("GPU-", "MIG-")):
        return nvml.nvmlDeviceGetHandleByUUID(name)
    return nvml.nvmlDeviceGetHandleByIndex(int(name))
