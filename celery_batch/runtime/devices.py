"""
Pins each process to one device.

The choice is made in the environment, before the model's libraries are
imported: a process that can see only one GPU cannot use memory on another by
mistake.  Nothing here imports torch or initialises CUDA, so the parent of
forked processes may use it, too.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from celery_batch.errors import ConfigurationError

__all__ = [
    "VISIBLE",
    "check_device",
    "discover",
    "gpu_files",
    "is_device",
    "pin",
    "require_seen",
    "shown",
    "usable_cores",
    "visible_entries",
    "visible_entry",
    "why_doubtful",
]

#: The environment variable with the GPUs that a process can see.
VISIBLE = "CUDA_VISIBLE_DEVICES"
#: Device files of GPUs that have no /dev/nvidia0: WSL's, Tegra's, AMD's.
_OTHER_GPUS = ("dxg", "nvhost-gpu", "nvgpu", "kfd")

_NAME = re.compile(r"cpu|mps|cuda:(\d+|(GPU|MIG)-[\w/-]+)")


def discover() -> list[str]:
    """Return the names of this machine's visible GPUs, such as ``"cuda:0"``; else ``"cpu"``."""
    visible = os.environ.get(VISIBLE)
    gpus = gpu_files() if visible is None else visible_entries(visible)
    return [f"cuda:{number}" for number, _ in enumerate(gpus)] or ["cpu"]


def gpu_files() -> list[Path]:
    """Return the driver's file of each GPU of this machine."""
    return sorted(Path("/dev").glob("nvidia[0-9]*"))


def is_device(name: Any) -> bool:
    """Return whether a device may have this name."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def check_device(name: Any) -> None:
    """Check the name of a device, which need not exist on this machine."""
    if not is_device(name):
        raise ConfigurationError(
            f"batch_devices: {name!r} is no device; write 'cpu', 'cuda:0', 'cuda:1', ..., or"
            f" a GPU's or MIG slice's id as nvidia-smi -L lists it"
        )


def pin(index: int, devices: Sequence[str] | None = None) -> str:
    """Pin this process to a device, if it exists and CUDA is not initialised; return its name."""
    # Pool process ``i``, and its replacement, gets device ``i mod n``.  A pinned GPU is
    # ``"cuda:0"``, since it is the only one the process can see.
    names = list(devices or discover())
    name = names[index % len(names)]
    check_device(name)
    if not name.startswith("cuda:"):
        return name
    entry = visible_entry(name)
    if entry != os.environ.get(VISIBLE):  # else an earlier worker of this process was pinned to it
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            raise ConfigurationError(
                "CUDA was initialised before this process was pinned to its GPU;"
                " move whatever touches torch.cuda from module level into Model.load"
            )
        os.environ[VISIBLE] = entry
    return "cuda:0"


def why_doubtful(names: Sequence[str]) -> str:
    """Return why devices seem not to exist on this machine, which is no proof; "" if they do."""
    gpus = [name for name in names if name.startswith("cuda:")]
    if not gpus or sys.platform != "linux":
        return ""
    count = len(gpu_files())
    if not count and not any(list(Path("/dev").glob(pattern)) for pattern in _OTHER_GPUS):
        return "no GPU can be seen on this machine: it has no /dev/nvidia0"
    if VISIBLE in os.environ:  # numbers count its entries
        return ""
    numbers = [int(number) for name in gpus if (number := name[5:]).isdigit()]
    if count and max(numbers, default=0) >= count:
        return f"there is no GPU {max(numbers)}: this machine shows {count}, counted from 0"
    return ""


def shown(names: Sequence[str]) -> str:
    """Return devices as logs and messages name them, with what is doubtful about them."""
    doubt = why_doubtful(names)
    return ", ".join(names) + (f" ({doubt})" if doubt else "")


def require_seen(device: str, setting: str) -> None:
    """Refuse a GPU that torch cannot use, if the model has imported a torch built for GPUs."""
    torch = sys.modules.get("torch")
    if not device.startswith("cuda:") or torch is None:
        return
    if (torch.version.cuda or torch.version.hip) and not torch.cuda.is_available():
        raise ConfigurationError(
            f"{setting}: torch finds no GPU where {VISIBLE} is {os.environ.get(VISIBLE)!r};"
            f" is there one, and is its driver loaded?"
        )


def visible_entries(visible: str) -> list[str]:
    """Return the entries of a value of ``CUDA_VISIBLE_DEVICES``."""
    # The driver stops at the first invalid entry, which by convention is -1.
    entries = [entry.strip() for entry in visible.split(",")]
    return entries[: entries.index("-1")] if "-1" in entries else [e for e in entries if e]


def visible_entry(name: str) -> str:
    """Return the value of ``CUDA_VISIBLE_DEVICES`` that makes one GPU of this process visible."""
    number = name.removeprefix("cuda:")
    visible = os.environ.get(VISIBLE)
    if visible is None or not number.isdigit():
        return number
    entries = visible_entries(visible)
    if int(number) >= len(entries):
        raise ConfigurationError(
            f"batch_devices: there is no {name}: {VISIBLE}={visible!r} shows {len(entries)} GPUs"
        )
    return entries[int(number)]


def usable_cores() -> int:
    """Return how many cores this process may use, which may be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
