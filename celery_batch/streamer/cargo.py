"""What crosses the pipe between a streamer and its worker process."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Sequence
from typing import Any

from celery_batch.errors import BatchError, ModelError
from celery_batch.serving.runner import Outcome

__all__ = ["pack", "pickled", "unpack"]


def pickled(item: Any) -> bytes | None:
    """Return a thing's bytes, None if it has none."""
    try:
        return pickle.dumps(item, pickle.HIGHEST_PROTOCOL)
    except Exception:  # noqa: BLE001 (whatever a class does when it is pickled)
        return None


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
    outputs, broken = pickle.loads(packed)  # noqa: S301 (from our own child)
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
        return packed is not None and isinstance(pickle.loads(packed), Exception)  # noqa: S301 (our own)
    except Exception:  # noqa: BLE001 (an error whose class wants other arguments than it keeps)
        return False


def _checked(output: Any) -> Any:
    if pickled(output) is not None:
        return output
    kind = type(output).__name__
    return Outcome(error=ModelError(f"the output, a {kind}, cannot be pickled for its way back"))
