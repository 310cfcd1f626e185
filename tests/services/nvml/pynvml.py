"""NVIDIA's library as a machine with two GPUs would have it, one of which tells nothing."""

from __future__ import annotations

from types import SimpleNamespace


class NVMLError(Exception):
    """What the library raises."""


def nvmlInit():  # noqa: N802 (the library's name, as below)
    """Find the driver."""


def nvmlDeviceGetCount():  # noqa: N802
    """Say how many GPUs there are."""
    return 2


def nvmlDeviceGetHandleByIndex(index):  # noqa: N802
    """Return a GPU by its number."""
    if index > 1:
        raise NVMLError("Invalid Argument")
    return index


def nvmlDeviceGetHandleByUUID(uuid):  # noqa: N802
    """Return a GPU by its id."""
    return {"GPU-first": 0, "GPU-second": 1}[uuid]


def nvmlDeviceGetMemoryInfo(handle):  # noqa: N802
    """Say how full a GPU is."""
    if handle == 1:
        raise NVMLError("Not Supported")
    return SimpleNamespace(used=6 << 30, total=80 << 30)


def nvmlDeviceGetUtilizationRates(_handle):  # noqa: N802
    """Say how busy a GPU is, in percent."""
    return SimpleNamespace(gpu=87, memory=40)
