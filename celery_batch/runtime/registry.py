"""
The models of this process, each loaded once, and again on reload.

Rule 1: a batch uses one instance of a model from its beginning to its end.
Rule 2: an instance is unloaded when no batch uses it any more.
Rule 3: a model that exits has failed like one that raises.  Otherwise this would go unnoticed:
        a thread that loads would end silently, and a process as after a normal shutdown.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from celery_batch.errors import BatchError, LoadFailed
from celery_batch.runtime import devices
from celery_batch.runtime.model import Model
from celery_batch.runtime.runner import run_all
from celery_batch.runtime.signature import (
    example_rows,
    key_function,
    key_names,
    own_attribute,
    signature_of,
)
from celery_batch.runtime.stages import Stages, stages_of

__all__ = [
    "BatchInstances",
    "batches_of",
    "discard",
    "instance_of",
    "keep_key_option",
    "key_option",
    "load_again",
    "model_calls",
    "prepare",
    "prepare_later",
    "set_device",
    "swap_in",
    "unload",
    "unload_all",
    "warm",
    "warm_up_with",
]

logger = logging.getLogger(__name__)

Row = tuple[Any, ...]

_instances: dict[type[Model], Model] = {}
_lock = threading.RLock()
#: What models are warmed up with instead of their examples alone, by the names of their tasks;
#: and the functions of tasks without a model.
_warm_ups: dict[type[Model] | None, dict[str, Callable[[Model | None], object]]] = {}
#: By which the items of models share a batch, where the class does not say: the option of its
#: first task, None if that has none.
_key_options: dict[type[Model], Any] = {}
#: Loaded by `load_again`, and not in use yet.
_standby: dict[type[Model], Model] = {}
#: How many batches use each instance, by its id.
_users: Counter[int] = Counter()
_released = threading.Condition()
#: The instances that the batch on this thread uses.
_thread = threading.local()
_device: str | None = None
#: Called before the first batch.
_preparation: Callable[[], object] | None = None


def prepare_later(preparation: Callable[[], object]) -> None:
    """Call a function before this process' first batch, until it raises nothing, not earlier."""
    # A process that never runs one must not be restricted to one device.
    global _preparation  # noqa: PLW0603 (a process is prepared once)
    _preparation = preparation


def prepare() -> None:
    """Prepare this process for models, if that was postponed."""
    global _preparation  # noqa: PLW0603 (see above)
    if _preparation is None:
        return
    with _lock:  # batches may begin on several threads
        if _preparation is not None:
            _preparation()
            _preparation = None


def set_device(device: str) -> None:
    """Set the device of this process's models, as `devices.pin` returned it."""
    global _device  # noqa: PLW0603 (one device a process is the point)
    _device = device


def warm_up_with(
    model: type[Model] | None, task: str, warm_up: Callable[[Model | None], object]
) -> None:
    """Warm up each instance of a model for a task, in place of its examples; loaded ones now."""
    known = _warm_ups.setdefault(model, {})
    if task in known:
        return
    with _lock:  # batches may begin on several threads
        if task in known:
            return
        if model is None:
            warm_up(None)
        else:
            for loaded in [each[model] for each in (_instances, _standby) if model in each]:
                warm_up(loaded)
        known[task] = warm_up


def key_option(model: type[Model]) -> Any:
    """Return by which a model's items share a batch: its ``batch_by``, or that of its tasks."""
    found = _key_options.get(model)
    return own_attribute(model, "batch_by") if found is None else found


def keep_key_option(model: type[Model], batch_by: Any) -> bool:
    """Keep a task's option where its model has none; return whether other tasks have the same."""
    return bool(_key_options.setdefault(model, batch_by) == batch_by)


def instance_of(model: type[Model]) -> Model:
    """Return this process's instance of a model, which is loaded if necessary."""
    pinned: dict[type[Model], Model] | None = getattr(_thread, "pinned", None)
    if pinned is None:
        return _found(model)
    while model not in pinned:
        _found(model)  # which may load it; batches on other threads may end meanwhile
        with _released:
            found = _instances.get(model)
            if found is not None:
                pinned[model] = found
                _users[id(found)] += 1
    return pinned[model]


class BatchInstances:
    """The instances that one batch uses, on one thread after the other."""

    def __init__(self) -> None:
        self._pinned: dict[type[Model], Model] = {}

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Use the same instances in this block, whatever is swapped in meanwhile."""
        before = getattr(_thread, "pinned", None)
        _thread.pinned = self._pinned
        try:
            yield
        finally:
            _thread.pinned = before

    def release(self) -> None:
        """Use the instances no more."""
        pinned, self._pinned = self._pinned, {}
        if pinned:
            with _released:
                _users.subtract(id(instance) for instance in pinned.values())
                _released.notify_all()


def _found(model: type[Model]) -> Model:
    found = _instances.get(model)
    if found is not None:
        return found
    with _lock:  # of two threads that need it, the second finds it loaded
        if _device is None:  # not in a pool process
            set_device(devices.pin(0))
        if model not in _instances:
            _instances[model] = warm(model, model.__qualname__, str(_device))
        return _instances[model]


def warm(make: Callable[[], Model], name: str, device: str) -> Model:
    """Make a model, load it and warm it up with its own examples; raise `LoadFailed`."""
    started = time.monotonic()
    try:
        instance = make()
        instance.load(device)
        _warm_up(instance)
    except BatchError as error:
        raise LoadFailed(f"{name} on {device}: {error}") from error.__cause__ or error
    except (Exception, SystemExit) as error:
        raise LoadFailed(f"{name} on {device}: {type(error).__name__}: {error}") from error
    seconds = time.monotonic() - started
    logger.info("%s is warm on %s after %.1f s", name, devices.shown([device]), seconds)
    return instance


def load_again(model: type[Model]) -> None:
    """Load another instance of a model beside the one in use, if one is loaded here."""
    discard(model)
    if model in _instances:
        _standby[model] = warm(model, model.__qualname__, str(_device))


def swap_in(model: type[Model]) -> None:
    """Use the instance of `load_again` from now on; return when the old one is unloaded."""
    if model in _standby:
        _unload_when_released(model, _standby.pop(model))


def discard(model: type[Model]) -> None:
    """Unload the instance of `load_again` without using it."""
    if model in _standby:
        _unload(model, _standby.pop(model))


def unload(model: type[Model]) -> None:
    """Unload a model when no batch uses it any more; the next batch would load it again."""
    if model in _instances:
        _unload_when_released(model, None)


def unload_all() -> None:
    """Unload every model of this process; an error is logged and does not stop the others."""
    _warm_ups.clear()
    for models in (_standby, _instances):
        while models:
            _unload(*models.popitem())


def _unload_when_released(model: type[Model], successor: Model | None) -> None:
    with _released:
        old = _instances.pop(model)
        if successor is not None:
            _instances[model] = successor
        _released.wait_for(lambda: not _users[id(old)])
        del _users[id(old)]
    _unload(model, old)


def _unload(model: type[Model], instance: Model) -> None:
    try:
        instance.unload()
    except (Exception, SystemExit):
        logger.exception("%s.unload failed", model.__qualname__)


def _warm_up(instance: Model) -> None:
    model = type(instance)
    if warm_ups := [*_warm_ups.get(model, {}).values()]:
        for warm_up in warm_ups:
            warm_up(instance)
        return
    rows = example_rows(model, instance.examples())
    batch_by = key_option(model)
    key_of = key_function(batch_by, signature_of(model)) if batch_by is not None else None
    for batch in batches_of(rows, key_of):
        columns = [list(column) for column in zip(*batch, strict=True)]
        run_all(f"{model.__qualname__}.predict", model_calls(instance), columns)


def batches_of(
    rows: Iterable[Row], key_of: Callable[[Row], Hashable] | None
) -> Collection[list[Row]]:
    """Return rows as batches, in each of which all have the same key."""
    batches: dict[Any, list[Row]] = {}
    for row in rows:
        batches.setdefault(None if key_of is None else key_of(row), []).append(row)
    return batches.values()


def model_calls(instance: Model) -> Stages:
    """Return what calls a model with a column for each parameter."""
    model = type(instance)
    return stages_of(model, key_names(key_option(model)), lambda: instance)
