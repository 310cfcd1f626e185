"""
Classifies errors of models: out of memory, broken device, interrupted from outside.

Nothing here imports torch: where a model uses it, it has been imported.
"""

from __future__ import annotations

import gc
import sys
import traceback
from typing import Any

__all__ = [
    "free_memory",
    "free_unused_memory",
    "is_device_broken",
    "is_interrupt",
    "is_out_of_memory",
]

#: Parts of the messages of libraries that have no error class for it.
_NO_MEMORY = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "Failed to allocate memory")

#: CUDA errors of the caller, after which the device still works.
_HARMLESS = ("invalid argument", "invalid configuration", "no kernel image", "not supported")

#: Libraries that raise errors such as `GreenletExit` in another greenlet.
_GREENLETS = ("eventlet", "gevent", "greenlet")


def is_interrupt(error: BaseException) -> bool:
    """Return whether a function was interrupted from outside; any other error is its own."""
    if isinstance(error, Exception):
        return False
    library = type(error).__module__.partition(".")[0]
    return isinstance(error, KeyboardInterrupt) or library in _GREENLETS


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether a batch did not fit into memory, the host's or the device's."""
    if isinstance(error, MemoryError):
        return True
    kind = getattr(_torch(), "OutOfMemoryError", None)
    if kind is not None and isinstance(error, kind):
        return True
    return isinstance(error, RuntimeError) and any(words in _text(error) for words in _NO_MEMORY)


def is_device_broken(error: BaseException) -> bool:
    """Return whether all later calls fail with the same error, so that only a new process helps."""
    if not isinstance(error, RuntimeError) or is_out_of_memory(error):
        return False
    text = _text(error)
    if "CUDA error" not in text:
        return False
    torch = _torch()
    if torch is not None and torch.cuda.is_initialized():
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return True
        return False
    return not any(words in text for words in _HARMLESS)


def free_memory(error: BaseException) -> None:
    """Free the memory of a failed call, before a smaller one is tried."""
    # The frames refer to the call's arrays.
    traceback.clear_frames(error.__traceback__)
    free_unused_memory()


def free_unused_memory() -> None:
    """Free the device memory that is no longer used."""
    gc.collect()
    torch = _torch()
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _text(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 (a user's class may raise anything)
        return ""


def _torch() -> Any:
    return sys.modules.get("torch")
