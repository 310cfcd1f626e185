"""
Messages between a streamer and its worker processes: pickles, with large arrays beside them.

The bytes of large arrays and tensors are written to the pipe from where they lie, and read into
memory that the received arrays use: `pickle` would copy them twice more.  The pipes have no
names, so no other process can write to them, and nothing of them is left when a process is killed.

A message is the number of its buffers and the pickle; then, if there are buffers, their sizes;
then each of them.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Sequence
from importlib import import_module
from struct import Struct, pack, unpack
from typing import Any, NamedTuple

__all__ = ["Message", "dump", "loads", "pickled", "receive", "send", "unpickled"]

#: Fewer bytes are cheaper within the pickle than beside it.
_LARGE = 1 << 16

_COUNT = Struct("<I")

#: Dimensions of tensors whose channels may come last in memory, which torch keeps.
_WITH_CHANNELS = (4, 5)


class Message(NamedTuple):
    """A pickled value."""

    body: Any  # the number of buffers, and the pickle
    buffers: Sequence[Any] = ()  # what the pickle has left out, in order


def pickled(value: Any) -> Message | None:
    """Return a value as a message, or None if it cannot be pickled."""
    try:
        return dump(value)
    except Exception:  # noqa: BLE001 (a class may raise anything when it is pickled)
        return None


def dump(value: Any) -> Message:
    """Return a value as a message; a class in it may raise anything when it is pickled."""
    buffers: list[Any] = []

    def is_in_band(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < _LARGE:
            return True
        buffers.append(view)
        return False

    # Another thread may be importing torch.
    has_tensors = getattr(sys.modules.get("torch"), "Tensor", None) is not None
    kind = _TensorPickler if has_tensors else pickle.Pickler
    file = io.BytesIO()
    file.write(_COUNT.pack(0))
    kind(file, 5, buffer_callback=is_in_band).dump(value)
    body = file.getbuffer()
    _COUNT.pack_into(body, 0, len(buffers))
    return Message(body, buffers)


def unpickled(message: Message) -> Any:
    """Return what the other end has pickled; its arrays use the message's buffers."""
    pickle_only = memoryview(message.body)[_COUNT.size :]
    return pickle.loads(pickle_only, buffers=message.buffers)  # noqa: S301 (from our own pipe)


def loads(data: bytes) -> Any:
    """Return what the process that started this one has pickled for it."""
    return pickle.loads(data)  # noqa: S301 (as above)


def send(pipe: Any, message: Message) -> None:
    """Write a message to a pipe; an OSError if the other end is closed."""
    pipe.send_bytes(message.body)
    if message.buffers:
        sizes = (view.nbytes for view in message.buffers)
        pipe.send_bytes(pack(f"<{len(message.buffers)}Q", *sizes))
        for view in message.buffers:
            pipe.send_bytes(view)


def receive(pipe: Any) -> Message | None:
    """Read a message, None if it is empty; an EOFError or OSError if the other end is closed."""
    body = pipe.recv_bytes()
    if not body:
        return None
    (count,) = _COUNT.unpack_from(body)
    buffers = [bytearray(size) for size in unpack(f"<{count}Q", pipe.recv_bytes())] if count else ()
    for buffer in buffers:
        pipe.recv_bytes_into(buffer)
    return Message(body, buffers)


class _TensorPickler(pickle.Pickler):
    """A pickler that leaves out the elements of tensors, as NumPy's arrays do by themselves."""

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules["torch"]
        if type(value) is not torch.Tensor or not _is_plain(value, torch):
            return NotImplemented
        tensor = value.resolve_conj().resolve_neg().contiguous()
        size = tensor.numel() * tensor.element_size()
        data = (import_module("ctypes").c_char * size).from_address(tensor.data_ptr())
        data.tensor = tensor  # whose memory it is
        return _tensor, (value.dtype, tuple(value.shape), pickle.PickleBuffer(data))


def _is_plain(tensor: Any, torch: Any) -> bool:
    """Return whether a tensor is no more than its elements, in the CPU's memory, in C order."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not (tensor.requires_grad or tensor.is_quantized or tensor.__dict__)
        and not tensor.is_nested
        and tensor.numel() > 0
        and tensor.data_ptr() != 0
        and (tensor.ndim not in _WITH_CHANNELS or tensor.is_contiguous())
    )


def _tensor(dtype: Any, shape: tuple[int, ...], data: Any) -> Any:
    return import_module("torch").frombuffer(data, dtype=dtype).reshape(shape)
