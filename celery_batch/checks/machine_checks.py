"""Checks of pool and devices."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from celery_batch.checks.facts import PREFORK, Facts, Machine
from celery_batch.checks.finding import Finding, ok, problem, warning


def pool(facts: Facts) -> Iterator[Finding]:
    """The kind of the pool that the settings choose."""
    name = facts.pool
    if name in ("gevent", "eventlet"):
        yield problem(
            f"worker_pool={name} is not supported: a batch blocks such a pool's loop, and with"
            " it the worker.",
            "Use prefork; callers may use gevent all the same.",
        )
    elif name == "solo":
        yield warning(
            "worker_pool=solo: the worker reads no messages while a batch runs.",
            "Use prefork, the default.",
        )
    elif name in (*PREFORK, "threads"):
        yield ok(f"The pool is {name} by the settings here.")
    else:
        yield warning(
            f"worker_pool={name} is a pool that celery_batch does not know.", "Use prefork."
        )


def replacing(facts: Facts) -> Iterator[Finding]:
    """Settings by which processes are replaced, and models loaded again."""
    if number := facts.conf.worker_max_tasks_per_child:
        yield warning(
            f"worker_max_tasks_per_child={number} counts batches: after"
            " so many a process is replaced, and loads any model again.",
            "Leave it out, or make it large enough for hours.",
        )
    if memory := facts.conf.worker_max_memory_per_child:
        yield warning(
            f"worker_max_memory_per_child={memory} (KiB): a process"
            " above it is replaced after its batch, and loads any model again.",
            "Set it well above what a process with its models takes.",
        )


def gpu(facts: Facts) -> Iterator[Finding]:
    """Whether the models can see the GPUs of this machine."""
    machine, torch = facts.machine, facts.machine.torch
    chosen = facts.devices or ()
    if not machine.gpus:
        yield _without_gpus(machine, chosen)
    elif chosen and not any(name.startswith("cuda") for name in chosen):
        yield warning(
            f"batch_devices keeps models on {', '.join(chosen)}, and this machine has"
            f" {', '.join(machine.gpus)}.",
            "Leave batch_devices out to use every GPU.",
        )
    elif machine.visible is not None and not _shown(machine):
        yield warning(
            f"CUDA_VISIBLE_DEVICES is {machine.visible!r}: it hides every GPU of this machine.",
            "Unset it, or name GPUs in it.",
        )
    elif torch is not None and not torch.build:
        yield problem(
            f"torch {torch.version} was built without CUDA, and this machine has"
            f" {', '.join(machine.gpus)}.",
            "Install the CUDA build that PyTorch's install page names for your driver.",
        )
    elif torch is not None and not torch.gpus:
        yield problem(
            f"torch {torch.version} ({torch.build}) sees no GPU, and nvidia-smi shows"
            f" {', '.join(machine.gpus)}.",
            "Compare the driver's CUDA version (nvidia-smi) with torch's, and look at"
            " CUDA_VISIBLE_DEVICES.",
        )
    else:
        yield ok(f"GPUs of this machine: {', '.join(machine.gpus)}.")


def _without_gpus(machine: Machine, chosen: tuple[str, ...]) -> Finding:
    torch, names = machine.torch, ", ".join(chosen)
    if not any(name.startswith("cuda") for name in chosen):
        if machine.driver and not chosen:
            return warning(
                f"nvidia-smi is installed and does not work: {machine.driver}",
                "Mend the driver; after an update of it, that is a reboot as a rule.",
            )
        return ok("There is no NVIDIA GPU on this machine; batches run on the CPU.")
    if torch is None:
        return warning(
            f"batch_devices names {names}, and nothing shows a GPU on this machine: no nvidia-smi"
            " that works, no file of the driver, no torch.",
            "Run the check where the worker is to run, install the driver, or say 'cpu'.",
        )
    if torch.gpus:  # AMD's, which nvidia-smi does not show
        return ok(f"torch {torch.version} ({torch.build}) sees {torch.gpus} GPUs.")
    return problem(
        f"batch_devices names {names}, and torch {torch.version} sees no GPU on this machine.",
        "Run the check where the worker is to run, install the driver, or say 'cpu'.",
    )


def _shown(machine: Machine) -> int:
    """Return how many GPUs a worker may use; the driver reads as far as the first -1."""
    if machine.visible is None:
        return len(machine.gpus or ())
    entries = [entry.strip() for entry in machine.visible.split(",")]
    return len(list(takewhile(lambda entry: entry not in ("", "-1"), entries)))


def devices(facts: Facts) -> Iterator[Finding]:
    """How many copies of the models share a device."""
    machine, concurrency = facts.machine, facts.conf.worker_concurrency
    if not facts.tasks or facts.pool not in PREFORK:
        return
    cuda = [name for name in facts.devices or () if name.startswith("cuda")]
    if not (cuda or any(task.traces_items for task in facts.tasks)):
        return  # tasks of celery-batches alone, which have no model of ours
    count = len(cuda) if facts.devices else machine.gpus and _shown(machine)
    processes = concurrency or machine.cpus
    setting = (
        f"worker_concurrency is {processes}"
        if concurrency
        else f"worker_concurrency is not set: without --concurrency a worker has {processes}"
        " processes here, one a core"
    )
    if count and processes > count and (concurrency or not facts.workers):
        yield warning(
            f"{setting}, each with its own copy of any model, on {count} GPU{'s' * (count > 1)}.",
            f"Start workers with --concurrency={count}.",
        )
    elif not (count or concurrency or facts.workers) and processes > 1:
        yield warning(
            f"{setting}, each with batches of its own, and its own copy of any model.",
            "Start workers with --concurrency=1, and more where one process leaves cores idle.",
        )
