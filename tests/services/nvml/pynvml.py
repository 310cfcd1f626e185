"""NVIDIA's library as a machine with two GPUs would have it, one of which tells nothing."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace


class NVMLError(Exception):
    """What the library raises."""


@dataclass
class Gpu:
    """
    A GPU.

    Args:
        uuid: Its id.
        bus: The number of its PCI bus.
        name: What kind it is.
        memory: How much it has in GiB; None where it does not tell.
    """

    uuid: str
    bus: int
    name: str = "H200"
    memory: int | None = 80


#: In the library's order.
GPUS = [Gpu("GPU-first", 1), Gpu("GPU-second", 2, memory=None)]


def nvmlInit():  # noqa: N802 (the library's name, as below)
    """Find the driver."""


def nvmlDeviceGetCount():  # noqa: N802
    """Say how many GPUs there are."""
    return len(GPUS)


def nvmlDeviceGetHandleByIndex(index):  # noqa: N802
    """Return a GPU by its number."""
    return _found(GPUS[index : index + 1])


def nvmlDeviceGetHandleByUUID(uuid):  # noqa: N802
    """Return a GPU by its id, which has to be whole."""
    return _found([gpu for gpu in GPUS if gpu.uuid == uuid])


def nvmlDeviceGetHandleByPciBusId(address):  # noqa: N802
    """Return a GPU by its place, such as 0000:01:00.0."""
    return _found([gpu for gpu in GPUS if gpu.bus == int(address.split(":")[1], 16)])


def nvmlDeviceGetName(handle):  # noqa: N802
    """Say what kind a GPU is."""
    return handle.name


def nvmlDeviceGetUUID(handle):  # noqa: N802
    """Say a GPU's id."""
    return handle.uuid


def nvmlDeviceGetPciInfo(handle):  # noqa: N802
    """Say where a GPU is."""
    return SimpleNamespace(domain=0, bus=handle.bus, device=0)


def nvmlDeviceGetMemoryInfo(handle):  # noqa: N802
    """Say how full a GPU is."""
    if handle.memory is None:
        raise NVMLError("Not Supported")
    return SimpleNamespace(used=6 << 30, total=handle.memory << 30)


def nvmlDeviceGetUtilizationRates(_handle):  # noqa: N802
    """Say how busy a GPU is, in percent."""
    return SimpleNamespace(gpu=87, memory=40)


def _found(gpus):
    if not gpus:
        raise NVMLError("Invalid Argument")
    return gpus[0]
