"""

One process, one device.

The choice is made in the environment, before the model's libraries are
imported: a process that can see one GPU cannot take memory on another by
mistake.  Nothing here imports torch or wakes the CUDA driver, so the parent of
forked processes may ask too.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from celery_batch.errors import ConfigurationError

__all__ = [
    "VISIBLE",
    "discover",
    "pin",
    "require_seen",
    "usable_cores",
    "visible_entries",
    "visible_entry",
    "why_doubtful",
]

#: The variable that says which GPUs a process may see.
VISIBLE = "CUDA_VISIBLE_DEVICES"
#: Of GPUs without a file of the usual name: WSL's, Tegra's, AMD's.
_OTHER_GPUS = ("dxg", "nvhost-gpu", "nvgpu", "kfd")

_NAME = re.compile(r"cpu|mps|cuda:(\d+|(GPU|MIG)-[\w/-]+)")


def discover() -> list[str]:
    """
    Name the devices this machine offers: its visible GPUs, else the CPU.

    Returns:
        Names such as ``["cuda:0", "cuda:1"]`` or ``["cpu"]``, never empty.
    """
    visible = os.environ.get(VISIBLE)
    if visible is None:
        count = len(list(Path("/dev").glob("nvidia[0-9]*")))
    else:
        count = len(visible_entries(visible))
    return [f"cuda:{number}" for number in range(count)] or ["cpu"]


def pin(index: int, devices: Sequence[str] | None = None) -> str:
    """
    Pin this process to one device, before any model library is imported.

    Args:
        index: Which pool process this is, from 0; process ``i`` gets device
            ``i mod n``, and its replacement gets the same one.
        devices: Names to choose from; all that can be seen unless given.

    Returns:
        What the model should call its device: a pinned GPU is ``"cuda:0"``,
        since it is the only one the process can see.

    Raises:
        ConfigurationError: A device's name is wrong, there is no such GPU, or
            CUDA is awake already, so that the choice would come too late.
    """
    names = list(devices or discover())
    name = names[index % len(names)]
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"batch_devices: {name!r} is no device; write 'cpu', 'cuda:0', 'cuda:1', ..., or"
            f" a GPU's or MIG slice's id as nvidia-smi -L lists it"
        )
    if not name.startswith("cuda:"):
        return name
    _require_sleeping_cuda()
    os.environ[VISIBLE] = visible_entry(name)
    return "cuda:0"


def why_doubtful(names: Sequence[str]) -> str:
    """
    Say what speaks against some devices on this machine; the empty string if nothing does.

    Args:
        names: As for `pin`.

    Returns:
        Words that follow the name of a setting.  It is a doubt and no more: a driver may
        have other files than all that we know.
    """
    gpus = [name for name in names if name.startswith("cuda:")]
    if not gpus or sys.platform != "linux" or VISIBLE in os.environ:
        return ""
    files = Path("/dev")
    count = len(list(files.glob("nvidia[0-9]*")))
    if not count and not any(list(files.glob(pattern)) for pattern in _OTHER_GPUS):
        return "no GPU can be seen on this machine: it has no /dev/nvidia0"
    numbers = [int(number) for name in gpus if (number := name[5:]).isdigit()]
    if count and max(numbers, default=0) >= count:
        return f"there is no GPU {max(numbers)}: this machine shows {count}, counted from 0"
    return ""


def require_seen(device: str, setting: str) -> None:
    """
    Refuse a GPU that torch cannot use, where the model has imported a torch that could.

    Args:
        device: As `pin` returned it.
        setting: What the user calls the choice, and how to choose otherwise.

    Raises:
        ConfigurationError: torch is there, made for GPUs, and finds none.
    """
    torch = sys.modules.get("torch")
    if not device.startswith("cuda:") or torch is None:
        return
    if (torch.version.cuda or torch.version.hip) and not torch.cuda.is_available():
        raise ConfigurationError(
            f"{setting}: torch finds no GPU where {VISIBLE} is {os.environ.get(VISIBLE)!r};"
            f" is there one, and is its driver loaded?"
        )


def visible_entries(visible: str) -> list[str]:
    """
    Return the GPUs that a value of ``CUDA_VISIBLE_DEVICES`` names, each as it does.

    Args:
        visible: The value.
    """
    # The driver stops reading at the first entry it cannot use, by custom -1.
    entries = [entry.strip() for entry in visible.split(",")]
    return entries[: entries.index("-1")] if "-1" in entries else [e for e in entries if e]


def visible_entry(name: str) -> str:
    """
    Return what ``CUDA_VISIBLE_DEVICES`` has to say to show one GPU alone.

    Args:
        name: The GPU as this process sees it, such as ``"cuda:1"``.

    Raises:
        ConfigurationError: There is no such GPU.
    """
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
    """Return how many cores this process may run on, which may be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _require_sleeping_cuda() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise ConfigurationError(
            "CUDA was initialised before this process was pinned to its GPU;"
            " move whatever touches torch.cuda from module level into Model.load"
        )
