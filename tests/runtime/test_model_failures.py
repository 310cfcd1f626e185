"""What kind of trouble a model's error means."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from celery_batch.runtime.failures import free_memory, is_device_broken, is_out_of_memory


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError("no room"), True),
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (RuntimeError("[ONNXRuntimeError] Failed to allocate memory for buffer"), True),
        (RuntimeError("size mismatch"), False),
        (ValueError("out of memory"), False),
    ],
    ids=str,
)
def test_running_out_of_memory_has_many_names(error: Exception, expected: bool):  # noqa: FBT001
    """Each library says it in its own way; a user's own error that sounds like it is none."""
    assert expected is is_out_of_memory(error)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("CUDA error: device-side assert triggered"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), True),
        (RuntimeError("CUDA error: invalid argument"), False),
        (RuntimeError("CUDA error: out of memory"), False),
        (RuntimeError("size mismatch"), False),
        (ValueError("CUDA error: device-side assert triggered"), False),
    ],
    ids=str,
)
def test_broken_devices_are_told_by_their_words(error: Exception, expected: bool):  # noqa: FBT001
    """Where the device cannot be asked, CUDA's own words decide."""
    assert expected is is_device_broken(error)


@pytest.mark.parametrize("works", [True, False])
def test_device_that_can_be_asked_is_asked(monkeypatch: pytest.MonkeyPatch, works: bool):  # noqa: FBT001
    """Whether a later call fails too is what decides, whatever the words."""

    def synchronize() -> None:
        if not works:
            raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)

    assert works is not is_device_broken(RuntimeError("CUDA error: something new"))


def test_failed_call_s_arrays_are_let_go(monkeypatch: pytest.MonkeyPatch):
    """Before something smaller is tried, the traceback holds nothing large, nor does the cache."""
    emptied = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(True))
    held = []

    def predict() -> None:
        large = torch.zeros(8)
        held.append(weakref.ref(large))
        raise MemoryError

    gc.disable()
    try:
        predict()
    except MemoryError as error:
        free_memory(error)
        alive = held[0]()
    finally:
        gc.enable()

    assert alive is None
    assert [True] == emptied
