"""The main function of a streamer's worker process.

Pickles, since whatever a model takes or returns has to cross; the pipe has no name, and
nobody but the two ends can write to it.

Rule 1: its environment is in place before any of the user's modules is imported, even
        the main module, which a spawned process imports first of all.  So the plan comes
        along with the process's name, see `spawn_hook`.  It is in place again afterwards:
        the main module may have chosen GPUs for all processes together.
Rule 2: the model comes as bytes, and is unpickled by `load`: what goes wrong is an error
        with words, and not the end of a process.
Rule 3: it ends with its parent, however that ends; from its first moment on, where the
        system can do that, and not only when the main module has been imported.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import util
from typing import Any

from celery_batch.errors import BatchError, ConfigurationError, LoadFailed, ModelError
from celery_batch.runtime import devices
from celery_batch.runtime.model import Model
from celery_batch.runtime.runner import Outcome, Runner
from celery_batch.streamer.model_adapters import warm
from celery_batch.streamer.parent_death import end_with_manager, end_with_parent

__all__ = [
    "UNGUARDED",
    "Plan",
    "arrive",
    "is_arriving",
    "load",
    "pack",
    "pickled",
    "run",
    "settle_in",
    "unpack",
    "unpickled",
]


def pickled(item: Any) -> bytes | None:
    """Return a thing's bytes, None if it has none."""
    try:
        return pickle.dumps(item, pickle.HIGHEST_PROTOCOL)
    except Exception:  # noqa: BLE001 (whatever a class does when it is pickled)
        return None


def unpickled(packed: bytes) -> Any:
    """Return what the other end has pickled."""
    return pickle.loads(packed)  # noqa: S301 (from our own pipe)


def pack(outputs: Sequence[Any], broken: str | None) -> bytes:
    """
    Pickle a batch's outputs; one that cannot be pickled is an error, and costs the others nothing.

    Args:
        outputs: An `Outcome` in place of those that are missing.
        broken: Why the process should run no more batches, if so.
    """
    if Outcome in set(map(type, outputs)):
        outputs = [_portable(each) for each in outputs]
    whole = pickled((list(outputs), broken))
    if whole is not None:
        return whole
    return pickle.dumps(([_checked(each) for each in outputs], broken), pickle.HIGHEST_PROTOCOL)


def unpack(packed: bytes) -> tuple[list[Any], str | None]:
    """Return the outputs of a batch, and why its process should run no more, if so."""
    outputs, broken = unpickled(packed)
    return outputs, broken


def _portable(output: Any) -> Any:
    """Return an outcome without what cannot cross: a traceback, or an error that cannot be made."""
    if type(output) is not Outcome or output.error is None:
        return output
    error = output.error
    told = "".join(traceback.format_exception(error.with_traceback(output.origin)))
    if _comes_through(error):
        if not isinstance(error, BatchError):
            error.__notes__ = [f"In the worker process:\n{told}"]
        return Outcome(error=error)
    return Outcome(error=ModelError(f"{type(error).__name__}: {error}\n\n{told}"))


def _comes_through(error: Exception) -> bool:
    packed = pickled(error)
    try:
        return packed is not None and isinstance(unpickled(packed), Exception)
    except Exception:  # noqa: BLE001 (an error whose class wants other arguments than it keeps)
        return False


def _checked(output: Any) -> Any:
    if pickled(output) is not None:
        return output
    kind = type(output).__name__
    return Outcome(error=ModelError(f"the output, a {kind}, cannot be pickled for its way back"))


logger = logging.getLogger(__name__)


#: The exit status of a process whose main module goes on to use a streamer: sysexits' "usage".
UNGUARDED = 64


@dataclass(frozen=True, slots=True)
class Plan:
    """
    What a worker process has to know from the start.

    Args:
        index: Which of its streamer's workers it is, from 0.
        workers: How many there are.
        devices: To choose from by index, and to be pinned to; None for no pinning.
        size: Most items in one call of the model.
    """

    index: int
    workers: int
    devices: list[str] | None
    size: int

    def follow(self) -> str:
        """Put this process's environment in place; return what the model calls its device."""
        share = max(devices.usable_cores() // self.workers, 1)
        os.environ.setdefault("OMP_NUM_THREADS", str(share))
        if self.devices is None:
            found = devices.discover()
            return found[self.index % len(found)]
        try:
            return devices.pin(self.index, self.devices)
        except ConfigurationError as error:
            raise ConfigurationError(str(error).replace("batch_devices", "cuda_devices")) from error


@dataclass(slots=True)
class _State:
    """What this process is; nothing in any other process."""

    plan: Plan | None = None
    device: str = "cpu"
    #: The choice of GPUs in the environment that makes it so; None for no choice.
    visible: str | None = None
    trouble: ConfigurationError | None = None
    given: Model | bytes | None = None
    runner: Runner | None = None


_state = _State()


def is_arriving() -> bool:
    """Say whether this is a streamer's worker process whose model is not loaded yet."""
    return _state.plan is not None and _state.runner is None


def arrive(plan: Plan) -> None:
    """
    Put this process's environment in place; called at its start, and after its imports.

    Args:
        plan: Of this process.
    """
    if _state.plan != plan:
        _state.plan = plan
        end_with_parent(os.getppid())
        try:
            _state.device = plan.follow()
        except ConfigurationError as error:  # told by `load`
            _state.trouble = error
        else:
            _state.visible = os.environ.get(devices.VISIBLE) if plan.devices else None
    if _state.visible is not None:
        os.environ[devices.VISIBLE] = _state.visible


def settle_in(given: Model | bytes, plan: Plan) -> None:
    """
    Begin to be a worker process.

    Args:
        given: The model, pickled unless the process is forked.
        plan: Of this process.
    """
    arrive(plan)  # a forked process has had no name to unpickle
    _state.given = given
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, who ends us
    end_with_manager()


def load() -> None:
    """
    Load the model and warm it up.

    Raises:
        LoadFailed: It could not be loaded, or its device cannot be had.
    """
    given, plan = _state.given, _state.plan
    if _state.trouble is not None:
        raise LoadFailed(str(_state.trouble))
    if given is None or plan is None:
        raise LoadFailed("this is no worker process of a streamer")
    model = _imported(given)
    try:
        warm(model, _state.device)
        if plan.devices is not None:
            devices.require_seen(_state.device, "cuda_devices (leave it out to do without)")
    except ConfigurationError as error:
        raise LoadFailed(f"{model} on {_state.device}: {error}") from None
    except LoadFailed as error:
        cause = error.__cause__
        logger.error("%s", error, exc_info=cause)  # noqa: TRY400 (the cause tells more)
        raise LoadFailed(str(error)) from None
    _state.runner = Runner(model.predict, str(model), most=plan.size)
    util.Finalize(model, model.unload, exitpriority=10)


def run(payload: bytes, alone: bool) -> bytes:  # noqa: FBT001 (it crosses a pipe)
    """
    Run a batch.

    Args:
        payload: Its items, pickled.
        alone: All of it is one request.

    Returns:
        What `celery_batch.streamer.worker_main.unpack` takes: the outputs, none if the batch was
        not run, and why this process should run no more batches, if so.
    """
    runner = _state.runner
    if runner is None:
        raise LoadFailed("the model is not loaded")
    outputs: Sequence[Any] = ()  # for who comes to a broken device: nobody has seen it fail yet
    if runner.broken is None:
        outputs = runner.answers(unpickled(payload), alone=alone)
    return pack(outputs, runner.broken)


def _imported(given: Model | bytes) -> Model:
    if isinstance(given, Model):
        return given
    try:
        model: Model = unpickled(given)
    except BaseException as error:
        raise LoadFailed(
            f"the worker process cannot import what predicts: {type(error).__name__}: {error};"
            " keep it in a module that can be imported, without side effects"
        ) from error
    return model
