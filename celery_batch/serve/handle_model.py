"""A handle as a model, which a worker loads and runs on batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from importlib import import_module
from typing import Any, ClassVar

from billiard.exceptions import SoftTimeLimitExceeded

from celery_batch.errors import BatchError, ConfigurationError, MessageRefused
from celery_batch.formatting import did_you_mean
from celery_batch.runtime.devices import require_seen, usable_cores
from celery_batch.runtime.failures import is_device_broken
from celery_batch.runtime.model import Model
from celery_batch.runtime.outputs import checked
from celery_batch.serve.envelope import opened
from celery_batch.serve.handle import NO_GPU, Handle, registry

__all__ = ["HandleModel", "find_handle"]

logger = logging.getLogger(__name__)

#: Most threads for preprocessing and postprocessing in one worker process.
_MOST_THREADS = 8

#: The module of a class that is named without one, as in easy-serve.
_USUAL_MODULE = "handle"


class HandleModel(Model):
    """Loads a handle by its name, once pinned to a device, and runs it on batches of envelopes."""

    #: As in the configuration: ``"Class"`` or ``"module:Class"``.
    handle_name: ClassVar[str]

    def load(self, device: str) -> None:
        """Make the handle on ``"cuda:0"``, the one GPU that this process sees, or on ``"cpu"``."""
        kind = find_handle(self.handle_name)
        if getattr(kind, "forward", None) is Handle.forward:
            raise ConfigurationError(f"Handle: {kind.__qualname__} must define forward(batch)")
        self._handle: Any = kind(device.removeprefix("cuda:") if device != "cpu" else NO_GPU)
        require_seen(device, "GPUs (write GPUs: cpu to serve without one)")
        self._takes_lists = isinstance(self._handle, Handle)
        if not self._takes_lists:
            logger.warning(
                "%s takes one request at a time, so the model runs once for each of a batch;"
                " make it a celery_batch.serve.handle.Handle, whose forward takes a list, and"
                " the model runs once for all of them",
                kind.__qualname__,
            )
        self._threads = _threads()

    def examples(self) -> Sequence[Any]:
        """Return the envelopes of the handle's examples."""
        examples = self._handle.examples() if self._takes_lists else ()
        return [{"task_id": "warm-up", "task_info": example} for example in examples]

    def predict(self, batch: list[Any]) -> Sequence[Any]:
        """Answer a batch of envelopes, each with an answer or with its own error."""
        envelopes = [_attempt(opened, data) for data in batch]
        if not self._takes_lists:
            return [_attempt(self._one, data) for data in envelopes]
        try:
            return self._many(envelopes)
        except SoftTimeLimitExceeded:  # a thread may hang: abandon it
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = _threads()
            raise

    def _many(self, batch: list[Any]) -> list[Any]:
        # A copy: a batch that fails is tried again in parts, from what the clients sent.
        answers = self._each(self._handle.preprocess, deepcopy(batch))
        inputs = [answer for answer in answers if not isinstance(answer, Exception)]
        outputs = self._forward(inputs) if inputs else []
        ends = iter(self._each(self._handle.postprocess, outputs))
        return [answer if isinstance(answer, Exception) else next(ends) for answer in answers]

    def _forward(self, inputs: list[Any]) -> Sequence[Any]:
        outputs = self._handle.forward(inputs)
        rows = list(outputs) if hasattr(outputs, "tolist") else outputs  # of an array: arrays
        return checked(f"{type(self._handle).__qualname__}.forward", rows, len(inputs))

    def _each(self, step: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
        return list(self._threads.map(lambda value: _attempt(step, value), values))

    def _one(self, data: Any) -> Any:
        handle = self._handle
        if callable(handle):
            return handle(data)
        return handle.postprocess(handle.forward(handle.preprocess(data)))


def _attempt(step: Callable[[Any], Any], value: Any) -> Any:
    """Run one step for one request; return its error, unless it concerns the whole batch."""
    if isinstance(value, Exception):  # what `forward` returned for it
        return _plain(value)
    try:
        return step(value)
    except SoftTimeLimitExceeded:
        raise
    except MessageRefused as error:
        return error
    except Exception as error:
        if is_device_broken(error):
            raise
        logger.exception("%s failed for one request", step.__qualname__)
        return _plain(error)


def _plain(error: Exception) -> Exception:
    """Return a `ValueError` that the web server can unpickle, which has not the user's modules."""
    if isinstance(error, BatchError):
        return error
    return ValueError(str(error)) if isinstance(error, ValueError) else error


def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(_MOST_THREADS, usable_cores()), "handle")


def find_handle(name: str) -> type:
    """Import ``"module:Class"``, or a ``"Class"`` that a module ``handle`` registers or defines."""
    module_name, _, class_name = name.rpartition(":")
    module = _module(module_name or _USUAL_MODULE, name)
    known = {key: value for key, value in vars(module).items() if isinstance(value, type)}
    if not module_name or class_name not in known:
        known |= registry.class_dict
    found = known.get(class_name)
    if found is None:
        raise ConfigurationError(
            f"Handle: {module.__name__} ({module.__file__}) has no class"
            f" {class_name}{did_you_mean(class_name, known)}"
        )
    return found


def _module(module_name: str, name: str) -> Any:
    try:
        return import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists, but not one that it imports
        hint = "" if ":" in name else f", or write Handle: module:{name}"
        raise ConfigurationError(
            f"Handle: no module {module_name} for {name}; put {module_name}.py into"
            f" the folder of the configuration or where the command runs{hint}"
        ) from error
