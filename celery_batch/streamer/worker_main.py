"""The main function of a streamer's worker process.

Items and outputs are pickled, since they may be anything.  The pipes have no names, so no other
process can write to them.

Rule 1: The environment is in place before any of the user's modules is imported, even
        the main module, which a spawned process imports first of all.  So it comes
        along with the process's name, see `spawn_hook`.  It is in place again afterwards:
        the main module may have chosen GPUs for all processes together.
Rule 2: The model comes as bytes, and is unpickled by `_load`: if that fails, the caller gets the
        error and not the end of a process.
Rule 3: A model's `collate` runs on a thread of its own, while `predict` runs the batch before.
Rule 4: The process ends with its parent, however that ends; from its first moment on, where the
        system can do that, and not only when the main module has been imported.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from celery_batch.errors import BatchError, ConfigurationError, LoadFailed, ModelError
from celery_batch.formatting import with_article
from celery_batch.runtime import devices, registry
from celery_batch.runtime.runner import BatchRun, Outcome, Runner
from celery_batch.streamer.messages import Message, dump, loads, pickled, receive, send, unpickled
from celery_batch.streamer.model_adapters import Adapter, CallTime, time_of
from celery_batch.streamer.parent_death import end_with_manager, end_with_parent

__all__ = ["UNGUARDED", "Plan", "arrive", "is_arriving", "serve"]

logger = logging.getLogger(__name__)

#: The exit status of a process whose main module goes on to use a streamer: sysexits' "usage".
UNGUARDED = 64

_is_arriving = False


def _pack(outputs: Sequence[Any], broken: str | None, call: CallTime | None) -> Message:
    """Pickle a batch's outputs; an error takes the place of one that cannot be pickled."""
    if Outcome in set(map(type, outputs)):
        outputs = [_portable(each) for each in outputs]
    whole = pickled((list(outputs), broken, call))
    return whole or dump(([_checked(each) for each in outputs], broken, call))


def _portable(output: Any) -> Any:
    """Return an outcome without its traceback, its error replaced if that cannot be unpickled."""
    if type(output) is not Outcome or output.error is None:
        return output
    error = output.error
    trace = "".join(traceback.format_exception(error.with_traceback(output.origin)))
    if _comes_through(error):
        if not isinstance(error, BatchError):
            error.__notes__ = [f"In the worker process:\n{trace}"]
        return Outcome(error=error)
    return Outcome(error=ModelError(f"{type(error).__name__}: {error}\n\n{trace}"))


def _comes_through(error: Exception) -> bool:
    packed = pickled(error)
    try:
        return packed is not None and isinstance(unpickled(packed), Exception)
    except Exception:  # noqa: BLE001 (an error whose class wants other arguments than it keeps)
        return False


def _checked(output: Any) -> Any:
    if pickled(output) is not None:
        return output
    kind = with_article(type(output).__name__)
    return Outcome(error=ModelError(f"the output, {kind}, cannot be pickled for its way back"))


@dataclass(frozen=True, slots=True)
class Plan:
    """What a worker process has to know."""

    env: dict[str, str]  # its environment beside that of its parent
    device: str  # what the model calls its device
    is_pinned: bool  # whether the device was chosen by the user
    size: int  # most items in one call of the model


def is_arriving() -> bool:
    """Say whether this is a streamer's worker process whose model is not loaded yet."""
    return _is_arriving


def arrive(env: Mapping[str, str]) -> None:
    """Put this process's environment in place; called at its start, and after its imports."""
    global _is_arriving  # noqa: PLW0603 (of this process)
    os.environ.update(env)
    if not _is_arriving:
        _is_arriving = True
        end_with_parent(os.getppid())


def serve(
    batches: Any,  # pickles of items, and of whether they are one request
    replies: Any,  # pickles of what `_run` returns
    given: Adapter | bytes,  # a pickle unless the process is forked
    plan: Plan,
) -> None:
    """Load the model, report its error or an empty message, and run batches until one comes."""
    global _is_arriving  # noqa: PLW0603 (of this process)
    arrive(plan.env)  # a forked process has had no name to unpickle
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us
    end_with_manager()
    try:
        model = _load(given, plan)
    except LoadFailed as error:
        replies.send_bytes(str(error).encode())
        return
    runner = Runner(model.calls, str(model), most=plan.size, cost=model.call_cost)
    _is_arriving = False
    replies.send_bytes(b"")
    received = (
        _collated_beside(runner, batches) if runner.has_stages else _received(runner, batches)
    )
    for batch in received:
        send(replies, _run(runner, batch))
    model.unload()


def _received(runner: Runner, batches: Any) -> Iterator[BatchRun | BaseException]:
    """Yield batches, collated if the model does that, until an empty message comes."""
    while (message := receive(batches)) is not None:
        try:
            items, alone = unpickled(message)
            run = BatchRun(runner, [items], alone=alone)
            run.collate()
        except BaseException as error:  # noqa: BLE001 (the batch's, and the process has to live on)
            yield error
        else:
            yield run


def _collated_beside(runner: Runner, batches: Any) -> Iterator[BatchRun | BaseException]:
    """Yield batches that a thread has collated; few, since few are sent before their answers."""
    ready: SimpleQueue[BatchRun | BaseException | None] = SimpleQueue()

    def work() -> None:
        try:
            for batch in _received(runner, batches):
                ready.put(batch)
        finally:
            ready.put(None)

    threading.Thread(target=work, name="celery_batch collate", daemon=True).start()
    while (batch := ready.get()) is not None:
        yield batch


def _load(given: Adapter | bytes, plan: Plan) -> Adapter:
    """Load the model and warm it up."""
    try:
        if plan.is_pinned:
            devices.pin(0, [plan.device])
        model = given if isinstance(given, Adapter) else _imported(given)
        registry.warm(lambda: model, str(model), plan.device)
        if plan.is_pinned:
            devices.require_seen(plan.device, "cuda_devices (leave it out to do without)")
    except ConfigurationError as error:
        raise LoadFailed(str(error).replace("batch_devices", "cuda_devices")) from None
    except LoadFailed as error:
        cause = error.__cause__
        logger.error("%s", error, exc_info=cause)  # noqa: TRY400 (the cause says more)
        raise
    return model


def _run(runner: Runner, batch: BatchRun | BaseException) -> Message:
    """Run a batch; return the reply, without outputs if the device was broken before."""
    try:
        if runner.broken is not None:
            return _pack((), runner.broken, None)
        if isinstance(batch, BaseException):
            raise batch  # noqa: TRY301 (answered below)
        outputs = batch.call()
        return _pack(outputs, runner.broken, time_of(batch))
    except BaseException as error:  # noqa: BLE001 (the process has to live on)
        broke_off = ModelError(f"the model broke off: {type(error).__name__}: {error}")
        broke_off.add_note(f"In the worker process:\n{traceback.format_exc()}")
        return dump((broke_off, runner.broken, None))


def _imported(given: bytes) -> Adapter:
    try:
        model: Adapter = loads(given)
    except BaseException as error:
        raise LoadFailed(
            f"the worker process cannot import the model: {type(error).__name__}: {error};"
            " keep it in a module that can be imported, without side effects"
        ) from error
    return model
