"""Loads models in the pool process, at its start and again at runtime.

Orders come to each pool process as datagrams, to a thread of their own: the main
thread runs batches meanwhile, and no job of the pool and no time limit is involved.

A pool process that has not said so gets no work, so no task ever waits for a
model that cannot be loaded, and no time limit of a task runs while one loads.
The outcome goes to the parent as one datagram; a socket in a private folder
works the same for forked and spawned processes.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import traceback
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from celery import current_app, signals
from celery.utils.dispatch import Signal
from celery.utils.log import current_process_index

from celery_batch.compat.gc import keep_what_is_there, unfreeze_all
from celery_batch.config import Settings
from celery_batch.errors import BatchError, ConfigurationError
from celery_batch.runtime import devices, registry
from celery_batch.runtime.failures import give_memory_back, is_out_of_memory
from celery_batch.worker.dispatch.write_ahead import is_wanted
from celery_batch.worker.executor.pipeline import start_threads

__all__ = [
    "DISCARD",
    "IN_PLACE",
    "LOAD",
    "TAKE_UP",
    "Plan",
    "address_of",
    "carry_out",
    "listen",
    "load_failed",
    "load_in_pool_process",
    "load_models",
]


logger = logging.getLogger(__name__)


#: The steps of an order: load beside, then answer with that or let go of it; or unload first.
LOAD, TAKE_UP, DISCARD, IN_PLACE = "load", "take up", "discard", "in place"


#: Characters; the end of a longer error is cut off.
_LONGEST_ERROR = 4000


def carry_out(app: Any, task_name: str, step: str) -> str | None:
    """
    Do one step of an order in this process.

    Args:
        app: The Celery app.
        task_name: Of a task with a model.
        step: One of this module's.

    Returns:
        What went wrong; None if nothing did.
    """
    model = app.tasks[task_name].model
    try:
        if step == LOAD:
            registry.load_again(model)
        elif step == DISCARD:
            registry.discard(model)
        elif step == TAKE_UP:
            registry.swap_in(model)
            _forget(app, model)
        else:
            registry.unload(model)
            _forget(app, model)
            registry.instance_of(model)
    except Exception as error:  # noqa: BLE001 (whatever a model raises)
        return _told(error, step)[:_LONGEST_ERROR]
    return None


def _told(error: Exception, step: str) -> str:
    text = str(error) if isinstance(error, BatchError) else f"{type(error).__name__}: {error}"
    if step == LOAD and is_out_of_memory(error.__cause__ or error):
        text += "; batch_reload TASK in_place unloads the old weights first"
    error.__traceback__ = None  # whose frames hold what was loaded
    if error.__cause__ is not None:
        error.__cause__.__traceback__ = None
    give_memory_back()
    return text


def _forget(app: Any, model: Any) -> None:
    """Let go of the old weights, and of what was learnt about them."""
    unfreeze_all()
    give_memory_back()
    for task in list(app.tasks.values()):
        if getattr(task, "model", None) is model:
            task._batch_runner.forget()


def address_of(pid: int, beside: str | Path) -> str:
    """
    Return where a pool process listens.

    Args:
        pid: The process.
        beside: Another socket of this worker.
    """
    return str(Path(beside).with_name(str(pid)))


def listen(app: Any, beside: str) -> None:
    """
    Take orders in this pool process from now on.

    Args:
        app: The Celery app.
        beside: Another socket of this worker.
    """
    address = address_of(os.getpid(), beside)
    with suppress(OSError):
        Path(address).unlink()  # of a process that is gone
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    channel.bind(address)
    threading.Thread(target=_obey, args=(app, channel), name="batch-orders", daemon=True).start()


def _obey(app: Any, channel: socket.socket) -> None:
    while True:
        order = json.loads(channel.recv(1 << 16))
        error = carry_out(app, order["task"], order["step"])
        answer = {"pid": os.getpid(), "number": order["number"], "error": error}
        try:
            channel.sendto(json.dumps(answer).encode(), order["answer_to"])
        except OSError:
            logger.exception("Could not tell the worker how it went: %s", error or "well")


#: Sent in the worker's main process, with the `error` as a text, before it ends for that.
load_failed = Signal(name="batch_load_failed", providing_args={"error"})


#: How the plan reaches pool processes, also those that replace a dead one later.
_PLAN = "CELERY_BATCH_LOADING"


#: The exit status of a pool process whose model failed: sysexits' "cannot be configured".
_EX_CONFIG = 78


#: A datagram must fit into the socket's buffer; the end of a traceback tells most.
_LONGEST_REPORT = 16_000


@dataclass(frozen=True, slots=True)
class Plan:
    """
    What every pool process has to load.

    Args:
        tasks: Names of the batch tasks whose models this worker serves.
        processes: How many pool processes share the machine.
        socket: Where to report to.
        parent: The worker's process id; its children's children are not ours.
    """

    tasks: list[str]
    processes: int
    socket: str
    parent: int

    def publish(self) -> None:
        """Leave the plan where pool processes find it."""
        os.environ[_PLAN] = json.dumps(asdict(self))

    @staticmethod
    def withdraw() -> None:
        """Take the plan away again."""
        os.environ.pop(_PLAN, None)

    @classmethod
    def read(cls) -> Plan | None:
        """Return the plan this process was started with, if it has to load anything."""
        text = os.environ.get(_PLAN)
        plan = cls(**json.loads(text)) if text else None
        return plan if plan and plan.parent == os.getppid() else None


def load_models(app: Any, tasks: Iterable[str], *, index: int = 0, processes: int = 1) -> str:
    """
    Pin this process to its device and load the models of these tasks.

    Args:
        app: The Celery app.
        tasks: Names of batch tasks; those without a model load nothing.
        index: Which of the pool's processes this is, from 0.
        processes: How many there are.

    Returns:
        The device.

    Raises:
        LoadFailed: A model could not be loaded or warmed up.
        ConfigurationError: The device cannot be had.
    """
    if processes > 1:
        # As many math threads as cores in every process would only fight.
        os.environ.setdefault("OMP_NUM_THREADS", str(max(devices.usable_cores() // processes, 1)))
    device = devices.pin(index, Settings.of(app).devices)
    registry.set_device(device)
    for name in tasks:
        model = app.tasks[name].model
        if model is not None:
            registry.instance_of(model)
    return device


def load_in_pool_process() -> None:
    """Load what the worker's plan says, report, and end this process if it failed."""
    plan = Plan.read()
    if plan is None:
        return
    index = current_process_index(base=0)
    load = partial(load_models, current_app, plan.tasks, index=index, processes=plan.processes)
    try:
        if plan.tasks:
            load()
        else:
            registry.prepare_later(load)
    except Exception as error:  # noqa: BLE001 (whatever it was, the parent must hear of it)
        is_plain = isinstance(error, ConfigurationError)
        _report(plan, error=str(error) if is_plain else traceback.format_exc())
        # At once: an exit by exception would be caught and logged on the way, and
        # a process that lives on would be given tasks.
        os._exit(_EX_CONFIG)
    signals.worker_process_shutdown.connect(_unload, weak=False)
    if is_wanted(current_app, plan.processes):
        start_threads(current_app._get_current_object())  # noqa: SLF001 (proxies look up where they are)
    keep_what_is_there()
    listen(current_app._get_current_object(), plan.socket)  # noqa: SLF001
    _report(plan, error=None)


def _report(plan: Plan, *, error: str | None) -> None:
    message = json.dumps({"pid": os.getpid(), "error": error and error[-_LONGEST_REPORT:]})
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        try:
            channel.sendto(message.encode(), plan.socket)
        except OSError:
            logger.exception("Could not tell the worker how loading went: %s", error or "well")


def _unload(**_: Any) -> None:
    registry.unload_all()
