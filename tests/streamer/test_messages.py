"""Messages between a streamer and its processes: what they carry, and what they copy."""

from __future__ import annotations

import multiprocessing
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from celery_batch.streamer.messages import dump, pickled, receive, send, unpickled

LARGE = np.arange(2**16, dtype="f4").reshape(256, 256)


def sent(value: Any) -> Any:
    """Return what another process receives."""
    reader, writer = multiprocessing.Pipe(duplex=False)
    with reader, writer:
        sender = threading.Thread(target=send, args=(writer, dump(value)))
        sender.start()
        message = receive(reader)
        sender.join()
    assert message is not None
    return unpickled(message)


@pytest.mark.parametrize(
    "array",
    [
        LARGE,
        LARGE[:2],
        LARGE.T,
        np.asfortranarray(LARGE),
        LARGE[::-2],
        LARGE.astype(">f8"),
        np.zeros((0, 5)),
        np.array(["text", object()][:1]),
        np.ones(2**16, [("a", "f4"), ("b", "i8")]),
        np.ma.array(LARGE, mask=LARGE > 9),
    ],
    ids=str,
)
def test_any_array_comes_through(array):
    """Large or small, in any order, with any type; and it can be changed."""
    found = sent([array, {"a": array}])

    assert found[0] is found[1]["a"]
    assert (array.dtype, array.shape) == (found[0].dtype, found[0].shape)
    assert array.tolist() == found[0].tolist()
    found[0][...] = array


@pytest.mark.parametrize(
    "change",
    [
        lambda tensor: tensor,
        lambda tensor: tensor[:2],
        lambda tensor: tensor.t(),
        lambda tensor: tensor.bfloat16(),
        lambda tensor: tensor.to(torch.float8_e4m3fn),
        lambda tensor: torch.complex(tensor, tensor).conj(),
        lambda tensor: tensor > 3,
        lambda tensor: tensor.to_sparse(),
        torch.nn.Parameter,
        lambda tensor: tensor[:0],
    ],
    ids=[
        "large",
        "small",
        "transposed",
        "bfloat16",
        "float8",
        "conjugated",
        "booleans",
        "sparse",
        "parameter",
        "empty",
    ],
)
def test_any_tensor_comes_through(change: Callable[[torch.Tensor], torch.Tensor]):
    """With its type, its layout and whether it has a gradient."""
    tensor = change(torch.arange(2.0**16).reshape(256, 256))
    (found,) = sent([tensor])

    assert type(tensor) is type(found)
    assert (tensor.dtype, tensor.shape, tensor.layout) == (found.dtype, found.shape, found.layout)
    assert tensor.requires_grad == found.requires_grad
    assert str(tensor.tolist()) == str(found.tolist()) if not tensor.is_sparse else True


def test_the_layout_of_channels_is_kept():
    """Models may be faster with channels last."""
    tensor = torch.zeros(2, 8, 64, 64).contiguous(memory_format=torch.channels_last)

    assert tensor.stride() == sent(tensor).stride()


def test_while_another_thread_imports_torch(monkeypatch):
    """What it has of torch by then does not matter."""
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))

    assert LARGE.tolist() == sent([LARGE])[0].tolist()


def test_a_tensor_with_attributes_keeps_them():
    """It is more than its elements."""
    tensor = torch.zeros(2**16)
    tensor.label = "zeros"

    assert "zeros" == sent(tensor).label


@pytest.mark.parametrize("array", [LARGE, torch.from_numpy(LARGE)], ids=["numpy", "torch"])
def test_large_arrays_are_written_from_where_they_lie(array):
    """They are not copied into the pickle; small ones are."""
    message = dump([array, array[:1]])

    assert 1024 < len(message.body) < 4096
    assert [LARGE.nbytes] == [view.nbytes for view in message.buffers]
    assert np.shares_memory(LARGE, np.asarray(message.buffers[0]))


def test_a_part_of_a_tensor_is_sent_alone():
    """Of a row of a large tensor no more is sent than the row."""
    row = torch.zeros(64, 2**16)[3]

    assert [4 * 2**16] == [view.nbytes for view in dump(row).buffers]


def test_many_buffers_and_large_bytes():
    """A message is as large as it has to be."""
    value = [[LARGE + n for n in range(100)], b"x" * (32 << 20)]
    arrays, data = sent(value)

    assert data == value[1]
    assert all((one == other).all() for one, other in zip(value[0], arrays, strict=True))


def test_what_cannot_be_pickled():
    """Is no message."""
    assert pickled(lambda: 0) is None
    assert pickled([LARGE, threading.Lock()]) is None


def test_the_end():
    """An empty message is the end."""
    reader, writer = multiprocessing.Pipe(duplex=False)
    with reader, writer:
        writer.send_bytes(b"")

        assert receive(reader) is None
