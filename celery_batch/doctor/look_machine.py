"""What this machine has: cores, GPUs, and a torch that may see them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec

from celery_batch.doctor.facts import Machine, Torch

__all__ = ["this_machine"]

#: Seconds; importing torch from a cold disk takes long.
_PATIENCE = 120.0

#: In a process of its own: neither torch nor the driver is to be woken in this one.
_ASK_TORCH = """
import json, torch
build = torch.version.cuda and f"CUDA {torch.version.cuda}"
build = build or (torch.version.hip and f"ROCm {torch.version.hip}") or ""
print(json.dumps([torch.__version__, build, torch.cuda.device_count()]))
"""


def this_machine() -> Machine:
    """Look around."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpus = _gpus()
    return Machine(
        cpus=cores or 1,
        gpus=gpus,
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        torch=_torch() if gpus else None,  # it takes seconds to say that there is none
    )


def _gpus() -> tuple[str, ...] | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    said = _said([program, "--query-gpu=name", "--format=csv,noheader"])
    return None if said is None else tuple(filter(None, said.splitlines()))


def _torch() -> Torch | None:
    if find_spec("torch") is None:
        return None
    said = _said([sys.executable, "-W", "ignore", "-c", _ASK_TORCH])
    if said is None:
        return None
    version, build, gpus = json.loads(said.splitlines()[-1])
    return Torch(version=version, build=build, gpus=gpus)


def _said(command: list[str]) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603 (our own two commands)
            command, capture_output=True, text=True, check=True, timeout=_PATIENCE
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
