"""
Loading a model anew in the process that has it, beside what runs there.

Orders come to each pool process as datagrams, to a thread of their own: the main
thread runs batches meanwhile, and no job of the pool and no time limit is involved.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from celery_batch.errors import BatchError
from celery_batch.serving import residents
from celery_batch.serving.trouble import give_memory_back, is_out_of_memory
from celery_batch.worker.garbage import look_at_all_again

__all__ = ["DISCARD", "IN_PLACE", "LOAD", "TAKE_UP", "address_of", "carry_out", "listen"]

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
            residents.renew(model)
        elif step == DISCARD:
            residents.discard(model)
        elif step == TAKE_UP:
            residents.take_up(model)
            _forget(app, model)
        else:
            residents.leave(model)
            _forget(app, model)
            residents.resident(model)
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
    look_at_all_again()
    give_memory_back()
    for task in list(app.tasks.values()):
        if getattr(task, "model", None) is model:
            task.runner().forget()


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
