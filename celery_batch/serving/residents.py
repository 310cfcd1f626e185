"""The models that live in this process, each loaded once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from celery_batch.errors import BatchError, LoadFailed
from celery_batch.serving import devices
from celery_batch.serving.model import Model
from celery_batch.serving.runner import Manners, Runner

__all__ = ["move_in", "move_out", "resident", "settle_on", "warm"]

logger = logging.getLogger(__name__)

_residents: dict[type[Model], Model] = {}
_lock = threading.RLock()
_device: str | None = None


def settle_on(device: str) -> None:
    """
    Say which device this process's models live on.

    Args:
        device: As `celery_batch.serving.devices.pin` returned it.
    """
    global _device  # noqa: PLW0603 (one device a process is the point)
    _device = device


def resident(model: type[Model]) -> Model:
    """
    Return this process's instance of a model, loading it first if need be.

    Raises:
        LoadFailed: It could not be loaded or warmed up.
    """
    found = _residents.get(model)
    if found is not None:
        return found
    with _lock:  # two threads may want it at once; the second finds it loaded
        if _device is None:  # nobody has planned this process: it is the first and only one
            settle_on(devices.pin(0))
        return _residents.get(model) or move_in(model, str(_device))


def move_in(model: type[Model], device: str) -> Model:
    """
    Load a model and warm it up with its own examples.

    Args:
        model: The class; it is constructed without arguments.
        device: Where to live.

    Raises:
        LoadFailed: From the error of the model, which it names.
    """
    _residents[model] = warm(model, model.__qualname__, device)
    return _residents[model]


def warm(make: Callable[[], Model], name: str, device: str) -> Model:
    """
    Make a model, load it and warm it up with its own examples.

    Args:
        make: Makes it.
        name: What to call it.
        device: Where to live.

    Raises:
        LoadFailed: From the error of the model, which it names.
    """
    started = time.monotonic()
    try:
        instance = make()
        instance.load(device)
        _warm_up(instance)
    except BatchError as error:
        raise LoadFailed(f"{name} on {device}: {error}") from error
    except Exception as error:
        raise LoadFailed(f"{name} on {device}: {type(error).__name__}: {error}") from error
    logger.info("%s is warm on %s after %.1f s", name, device, time.monotonic() - started)
    return instance


def move_out() -> None:
    """Unload every model of this process; an error is logged and stops nobody else."""
    while _residents:
        model, instance = _residents.popitem()
        try:
            instance.unload()
        except Exception:
            logger.exception("%s.unload failed", model.__qualname__)


def _warm_up(instance: Model) -> None:
    examples = list(instance.examples())
    if not examples:
        return
    name = f"{type(instance).__qualname__}.predict"
    for outcome in Runner(instance.predict, name, Manners(isolate=False)).run(examples):
        outcome.unwrap()
