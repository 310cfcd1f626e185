"""

The models of this process, each loaded once, and again on reload.

Rule 1: a batch has one instance of a model from its beginning to its end.
Rule 2: an instance is unloaded when no batch has it any more.
Rule 3: a model that exits has failed like one that raises.  Nobody would hear of it
        otherwise: a thread that loads ends silently, and a process as if it were told to.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from celery_batch.errors import BatchError, LoadFailed
from celery_batch.runtime import devices
from celery_batch.runtime.model import Model
from celery_batch.runtime.runner import ErrorPolicy, Runner
from celery_batch.runtime.signature import call_with_columns, example_rows, signature_of

__all__ = [
    "discard",
    "instance_of",
    "load",
    "load_again",
    "one_batch",
    "prepare",
    "prepare_later",
    "set_device",
    "swap_in",
    "unload",
    "unload_all",
    "warm",
]

logger = logging.getLogger(__name__)

_instances: dict[type[Model], Model] = {}
_lock = threading.RLock()
#: Loaded beside those that answer.
_fresh: dict[type[Model], Model] = {}
#: How many batches have which instance, by its id.
_users: Counter[int] = Counter()
_left = threading.Condition()
#: What the batch that runs on a thread has.
_here = threading.local()
_device: str | None = None
#: What is still to be done before the first batch.
_preparation: Callable[[], object] | None = None


def prepare_later(preparation: Callable[[], object]) -> None:
    """
    Have this process made ready for models by its first batch, and not before.

    It may never run one, and what runs in it then is not to be told its device.

    Args:
        preparation: Called until it raises nothing.
    """
    global _preparation  # noqa: PLW0603 (a process is made ready once)
    _preparation = preparation


def prepare() -> None:
    """Make this process ready for models, if that was put off."""
    global _preparation  # noqa: PLW0603 (see above)
    if _preparation is None:
        return
    with _lock:  # batches may begin on several threads
        if _preparation is not None:
            _preparation()
            _preparation = None


def set_device(device: str) -> None:
    """
    Say which device this process's models live on.

    Args:
        device: As `celery_batch.runtime.devices.pin` returned it.
    """
    global _device  # noqa: PLW0603 (one device a process is the point)
    _device = device


def instance_of(model: type[Model]) -> Model:
    """
    Return this process's instance of a model, loading it first if need be.

    Raises:
        LoadFailed: It could not be loaded or warmed up.
    """
    pinned: dict[type[Model], Model] | None = getattr(_here, "pinned", None)
    if pinned is None:
        return _found(model)
    while model not in pinned:
        _found(model)  # which may load it; others end their batches meanwhile
        with _left:
            found = _instances.get(model)
            if found is not None:
                pinned[model] = found
                _users[id(found)] += 1
    return pinned[model]


@contextmanager
def one_batch() -> Iterator[None]:
    """Have this thread meet the same instances until the end, whatever is taken up meanwhile."""
    before = getattr(_here, "pinned", None)
    pinned: dict[type[Model], Model] = {}
    _here.pinned = pinned
    try:
        yield
    finally:
        _here.pinned = before
        if pinned:
            with _left:
                _users.subtract(id(instance) for instance in pinned.values())
                _left.notify_all()


def _found(model: type[Model]) -> Model:
    found = _instances.get(model)
    if found is not None:
        return found
    with _lock:  # two threads may want it at once; the second finds it loaded
        if _device is None:  # nobody has planned this process: it is the first and only one
            set_device(devices.pin(0))
        return _instances.get(model) or load(model, str(_device))


def load(model: type[Model], device: str) -> Model:
    """
    Load a model and warm it up with its own examples.

    Args:
        model: The class; it is constructed without arguments.
        device: Where to live.

    Raises:
        LoadFailed: From the error of the model, which it names.
    """
    _instances[model] = warm(model, model.__qualname__, device)
    return _instances[model]


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
    except (Exception, SystemExit) as error:
        raise LoadFailed(f"{name} on {device}: {type(error).__name__}: {error}") from error
    logger.info("%s is warm on %s after %.1f s", name, device, time.monotonic() - started)
    return instance


def load_again(model: type[Model]) -> None:
    """
    Load another instance of a model that lives here, beside the one that answers.

    Raises:
        LoadFailed: It could not be loaded or warmed up; the other one goes on answering.
    """
    discard(model)
    if model in _instances:
        _fresh[model] = warm(model, model.__qualname__, str(_device))


def swap_in(model: type[Model]) -> None:
    """Have batches answered by the instance loaded last; return when the old one is unloaded."""
    if model in _fresh:
        _unload_when_left(model, _fresh.pop(model))


def discard(model: type[Model]) -> None:
    """Unload an instance that was to be taken up."""
    if model in _fresh:
        _unload(model, _fresh.pop(model))


def unload(model: type[Model]) -> None:
    """Unload a model when no batch has it any more; the next batch would have it loaded."""
    if model in _instances:
        _unload_when_left(model, None)


def unload_all() -> None:
    """Unload every model of this process; an error is logged and stops nobody else."""
    for models in (_fresh, _instances):
        while models:
            _unload(*models.popitem())


def _unload_when_left(model: type[Model], follower: Model | None) -> None:
    with _left:
        old = _instances.pop(model)
        if follower is not None:
            _instances[model] = follower
        _left.wait_for(lambda: not _users[id(old)])
        del _users[id(old)]
    _unload(model, old)


def _unload(model: type[Model], instance: Model) -> None:
    try:
        instance.unload()
    except (Exception, SystemExit):
        logger.exception("%s.unload failed", model.__qualname__)


def _warm_up(instance: Model) -> None:
    model = type(instance)
    rows = example_rows(model, instance.examples())
    if not rows:
        return
    signature = signature_of(model)

    def predict(*columns: list[Any]) -> Any:
        return call_with_columns(instance.predict, signature, columns)

    runner = Runner(predict, f"{model.__qualname__}.predict", ErrorPolicy(isolate_failures=False))
    for outcome in runner.run(*(list(column) for column in zip(*rows, strict=True))):
        outcome.unwrap()
