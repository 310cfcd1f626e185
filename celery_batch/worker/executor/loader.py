"""
Loads models in the pool process, at its start and again at runtime.

At its start each pool process reports by a datagram how loading went.  It gets no job before,
so no task waits for a model that cannot be loaded, and no time limit runs while one loads.
Later each pool process receives reload steps as datagrams on a thread of its own: the main
thread runs batches meanwhile, and no pool job and no time limit is involved.  Sockets in a
private folder work the same for forked and spawned processes.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
import traceback
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from celery import signals
from celery.app import app_or_default
from celery.utils.dispatch import Signal
from celery.utils.log import current_process_index

from celery_batch.compat.gc import collect_all, freeze_existing
from celery_batch.config import Settings
from celery_batch.errors import BatchError, ConfigurationError, LoadFailed
from celery_batch.items.shapes import has_shapes, prepare_shapes, warm_up
from celery_batch.runtime import devices, registry
from celery_batch.runtime.failures import free_unused_memory, is_out_of_memory
from celery_batch.worker.dispatch.job_submitter import overlap_state
from celery_batch.worker.executor.pipeline import start_threads
from celery_batch.worker.executor.row_reuse import forget_answers

__all__ = [
    "DISCARD",
    "IN_PLACE",
    "LOAD",
    "SWAP",
    "Plan",
    "address_of",
    "load_failed",
    "load_in_pool_process",
    "load_models",
    "run_step",
]

logger = logging.getLogger(__name__)

#: The steps of a reload: load beside the old weights, then swap them or discard the new ones;
#: or unload the old weights first.
LOAD, SWAP, DISCARD, IN_PLACE = "load", "swap", "discard", "in place"

#: Characters; the end of a longer error is cut off.
_LONGEST_ERROR = 4000

#: Sent in the worker's main process, with the error's text, before it ends for that reason.
load_failed = Signal(name="batch_load_failed", providing_args={"error"})

#: The environment variable with the plan, also for pool processes that replace others.
_PLAN = "CELERY_BATCH_LOADING"

#: Characters.  A datagram must fit into the socket's buffer; the start of a traceback is cut.
_LONGEST_REPORT = 16_000


def run_step(app: Any, task_name: str, step: str) -> str | None:
    """Do one step of a reload in this process, and return the error; None if there was none."""
    model = app.tasks[task_name].model
    try:
        if step == LOAD:
            registry.load_again(model)
        elif step == DISCARD:
            registry.discard(model)
        elif step == SWAP:
            registry.swap_in(model)
            _forget(app, model)
        else:
            registry.unload(model)
            _forget(app, model)
            registry.instance_of(model)
    except Exception as error:  # noqa: BLE001 (whatever a model raises)
        return _describe(error, step)[:_LONGEST_ERROR]
    return None


def _describe(error: Exception, step: str) -> str:
    text = str(error) if isinstance(error, BatchError) else f"{type(error).__name__}: {error}"
    if step == LOAD and is_out_of_memory(error.__cause__ or error):
        text += "; batch_reload TASK in_place unloads the old weights first"
    error.__traceback__ = None  # its frames hold what was loaded
    if error.__cause__ is not None:
        error.__cause__.__traceback__ = None
    free_unused_memory()
    return text


def _forget(app: Any, model: Any) -> None:
    """Free the old weights, and reset what was measured with them."""
    collect_all()
    free_unused_memory()
    for task in list(app.tasks.values()):
        if getattr(task, "model", None) is model:
            task._batch_runner.forget()
            forget_answers(task)


def address_of(pid: int, sibling: str | Path) -> str:
    """Return the address of a pool process' socket, beside that of another one of this worker."""
    return str(Path(sibling).with_name(str(pid)))


def _listen(app: Any, sibling: str) -> None:
    """Receive reload steps in this pool process from now on."""
    address = address_of(os.getpid(), sibling)
    with suppress(OSError):
        Path(address).unlink()  # of an earlier process with this id
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    channel.bind(address)
    threading.Thread(
        target=_run_steps, args=(app, channel), name="batch-reload", daemon=True
    ).start()


def _run_steps(app: Any, channel: socket.socket) -> None:
    while True:
        step = json.loads(channel.recv(1 << 16))
        error = run_step(app, step["task"], step["step"])
        _send(channel, step["reply_to"], error, number=step["number"])


@dataclass(frozen=True, slots=True)
class Plan:
    """What each pool process has to load."""

    tasks: list[str]  # the names of the batch tasks that this worker serves
    processes: int  # how many pool processes share the machine
    socket: str  # the address for reports
    parent: int  # the worker's process id: grandchildren load nothing

    def publish(self) -> None:
        """Put the plan into the environment of pool processes."""
        os.environ[_PLAN] = json.dumps(asdict(self))

    @staticmethod
    def withdraw() -> None:
        """Remove it again."""
        os.environ.pop(_PLAN, None)

    @classmethod
    def read(cls) -> Plan | None:
        """Return the plan of this process, if it is a pool process that has one."""
        text = os.environ.get(_PLAN)
        plan = cls(**json.loads(text)) if text else None
        return plan if plan and plan.parent == os.getppid() else None


def load_models(app: Any, tasks: Iterable[str], *, index: int = 0, processes: int = 1) -> str:
    """Pin this process to its device, load the models of these tasks, and return the device."""
    if processes > 1:
        # As many math threads as cores in each process would compete.
        os.environ.setdefault("OMP_NUM_THREADS", str(max(devices.usable_cores() // processes, 1)))
    _find_modules_beside_the_app()
    device = devices.pin(index, Settings.of(app).devices)
    registry.set_device(device)
    batch_tasks = [app.tasks[name] for name in tasks]
    for task in batch_tasks:
        if task.model is not None and has_shapes(task):
            registry.warm_up_with(task.model, task.name, partial(warm_up, task))
    for task in batch_tasks:
        if task.model is not None:
            try:
                registry.instance_of(task.model)
            except LoadFailed as error:
                words = f"{error}; it is the model of the task {task.name}"
                raise LoadFailed(words) from error.__cause__
        else:
            prepare_shapes(task)
    return device


def _find_modules_beside_the_app() -> None:
    """Put the working folder last on the path, where Celery has it only to import the app."""
    with suppress(FileNotFoundError):  # the folder was removed
        folder = str(Path.cwd())
        if folder not in sys.path:
            sys.path.append(folder)


def load_in_pool_process() -> None:
    """Load the models of the worker's plan, report, and end this process if that failed."""
    plan = Plan.read()
    if plan is None:
        return
    app, index = app_or_default(), current_process_index(base=0)  # a proxy is per thread
    load = partial(load_models, app, plan.tasks, index=index, processes=plan.processes)
    folder = Path(plan.socket).parent
    is_removed = not folder.exists()
    try:
        if plan.tasks:
            load()
        else:
            registry.prepare_later(load)
    except Exception as error:  # noqa: BLE001 (the worker has to get it)
        # A setting that is wrong needs no traceback.
        is_plain = isinstance(error, ConfigurationError) or isinstance(
            error.__cause__, ConfigurationError
        )
        _report(plan, str(error) if is_plain else traceback.format_exc()[-_LONGEST_REPORT:])
        # At once: an exception would be caught and logged on the way, and a process that
        # lives on would be given tasks.
        os._exit(os.EX_CONFIG)
    signals.worker_process_shutdown.connect(_unload, weak=False)
    if overlap_state(app, plan.processes).is_on:
        start_threads(app)
    freeze_existing()
    try:
        _listen(app, plan.socket)
    except FileNotFoundError:
        if is_removed:  # else the worker has ended meanwhile, and removed it
            logger.warning(
                "This process cannot receive batch_reload: the folder %s was removed. Have no"
                " cleaner remove it, or set TMPDIR to another folder, and restart the worker",
                folder,
            )
        return
    _report(plan, None)


def _report(plan: Plan, error: str | None) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        _send(channel, plan.socket, error)


def _send(channel: socket.socket, address: str, error: str | None, **fields: Any) -> None:
    message = json.dumps({"pid": os.getpid(), "error": error, **fields})
    try:
        channel.sendto(message.encode(), address)
    except OSError:
        logger.exception("Could not report to the worker: %s", error or "success")


def _unload(**_: Any) -> None:
    registry.unload_all()
