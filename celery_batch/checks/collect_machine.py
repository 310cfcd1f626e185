"""Finds out what the checks need of this machine: cores, GPUs, torch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from celery_batch.checks.facts import Machine, Torch

__all__ = ["this_machine"]

#: Seconds; importing torch from a cold disk takes long.
_TIMEOUT = 120.0

#: Run in a process of its own, so that neither torch nor the driver is loaded in this one.
_ASK_TORCH = """
import json, torch
build = torch.version.cuda and f"CUDA {torch.version.cuda}"
build = build or (torch.version.hip and f"ROCm {torch.version.hip}") or ""
print(json.dumps([torch.__version__, build, torch.cuda.device_count()]))
"""


def this_machine(*, wants_gpu: bool = False) -> Machine:
    """Return this machine; torch is asked for GPUs if there is one, or a setting names one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpus, driver = _gpus()
    return Machine(
        cpus=cores or 1,
        gpus=gpus,
        driver=driver,
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        torch=_torch() if gpus or wants_gpu else None,  # which takes seconds
    )


def _gpus() -> tuple[tuple[str, ...] | None, str]:
    """Return the names of the GPUs, and what is wrong with them."""
    program = shutil.which("nvidia-smi")
    if program is None:  # some containers have a GPU and no such program
        files = sorted(Path("/dev").glob("nvidia[0-9]*"))
        return tuple(map(str, files)) or None, ""
    try:
        output = _output([program, "--query-gpu=name", "--format=csv,noheader"])
    except subprocess.SubprocessError as error:
        words = str(getattr(error, "stdout", "") or error).strip()
        return None, words.partition("\n")[0]
    return tuple(filter(None, output.splitlines())), ""


def _torch() -> Torch | None:
    if find_spec("torch") is None:
        return None
    try:
        output = _output([sys.executable, "-W", "ignore", "-c", _ASK_TORCH])
    except subprocess.SubprocessError:
        return None
    version, build, gpus = json.loads(output.splitlines()[-1])
    return Torch(version=version, build=build, gpus=gpus)


def _output(command: list[str]) -> str:
    done = subprocess.run(  # noqa: S603 (our own two commands)
        command, capture_output=True, text=True, check=True, timeout=_TIMEOUT
    )
    return done.stdout.strip()
