"""
Pads the rows of a batch to one length: to the longest, to a multiple, or to one of a few lengths.

Neither numpy nor torch is imported before a function here needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from importlib import import_module
from typing import Any

from celery_batch.errors import ItemTooLarge

__all__ = ["pad", "pad_torch", "padded_length"]


def padded_length(
    longest: int, *, lengths: Iterable[int] | None = None, multiple: int | None = None
) -> int:
    """
    Return the length to which rows are padded.

    Args:
        longest: Of the longest row.
        lengths: The lengths to choose from, such as a model's ``batch_lengths``: the smallest
            that is no shorter.
        multiple: Instead of `lengths`: the next multiple of this number.

    Returns:
        The length; `longest` if neither `lengths` nor `multiple` is given.

    Raises:
        ItemTooLarge: The row is longer than all lengths.  In a batch, only its item fails.
        TypeError: Both `lengths` and `multiple` are given.
    """
    if lengths is not None and multiple is not None:
        raise TypeError("rows are padded to lengths or to a multiple, not to both")
    if multiple is not None:
        return -(-longest // multiple) * multiple
    if lengths is None:
        return longest
    found = [*lengths]
    if longest > max(found):
        raise ItemTooLarge(
            f"a row has a length of {longest}, and the largest of the lengths is {max(found)};"
            f" cut it, or add a length"
        )
    return min(each for each in found if each >= longest)


def pad(
    rows: Sequence[Any],
    *,
    lengths: Iterable[int] | None = None,
    multiple: int | None = None,
    value: Any = 0,
    dtype: Any = None,
) -> tuple[Any, Any]:
    """
    Pad rows at their ends, and return one numpy array and its mask.

    Args:
        rows: Lists of numbers, or arrays of shape ``(length, ...)`` that differ in length only.
        lengths: The lengths to choose from, as in `padded_length`.
        multiple: Instead of `lengths`: pad to a multiple of this number.
        value: What to pad with.
        dtype: Of the array.  Unless given: int64 for lists of whole numbers, float32 for lists
            of others, and the common dtype of arrays.

    Returns:
        The padded rows, of shape ``(rows, length, ...)``, and a mask of shape ``(rows, length)``
        and dtype bool, True where a row has a value.

    Raises:
        ItemTooLarge: A row is longer than all lengths.
        TypeError: A row is a single number.
        ValueError: Rows differ in more than their length.
    """
    np = import_module("numpy")
    arrays = [np.asarray(row) for row in rows]
    tail = _common_tail(arrays)
    if dtype is None:
        known = [each.dtype for each in arrays if each.size] or [np.dtype(np.int64)]
        dtype = np.result_type(*known)
        if dtype == np.float64 and not any(hasattr(row, "dtype") for row in rows):
            dtype = np.float32
    counts = np.array([len(each) for each in arrays], dtype=np.int64)
    length = padded_length(int(max(counts, default=0)), lengths=lengths, multiple=multiple)
    padded = np.full((len(arrays), length, *tail), value, dtype)
    for place, array in zip(padded, arrays, strict=True):
        if len(array):
            place[: len(array)] = array
    return padded, np.arange(length) < counts[:, None]


def pad_torch(
    rows: Sequence[Any],
    *,
    lengths: Iterable[int] | None = None,
    multiple: int | None = None,
    value: Any = 0,
    dtype: Any = None,
    device: Any = None,
) -> tuple[Any, Any]:
    """
    Pad rows at their ends, and return one torch tensor and its mask; see `pad`.

    The rows may be tensors, too.  The dtype is torch's default for lists of other than whole
    numbers.  The tensor and its mask are copied to `device` once; unless given, they are where the
    rows are, and those of lists on the CPU.
    """
    torch = import_module("torch")
    tensors = [torch.as_tensor(row) for row in rows]
    tail = _common_tail(tensors)
    filled = [each for each in tensors if each.numel()]
    if dtype is None:
        dtype = reduce(torch.promote_types, (each.dtype for each in filled)) if filled else None
    home = tensors[0].device if tensors else None
    counts = torch.tensor([len(each) for each in tensors], dtype=torch.int64)
    longest = max((len(each) for each in tensors), default=0)
    length = padded_length(longest, lengths=lengths, multiple=multiple)
    padded = torch.full(
        (len(tensors), length, *tail), value, dtype=dtype or torch.int64, device=home
    )
    for place, tensor in zip(padded, tensors, strict=True):
        if len(tensor):
            place[: len(tensor)] = tensor
    mask = torch.arange(length) < counts[:, None]
    return padded.to(device or home), mask.to(device or home)


def _common_tail(rows: Sequence[Any]) -> tuple[int, ...]:
    """Return the shape of the elements of all rows, of which some may be empty."""
    tail: tuple[int, ...] | None = None
    for index, row in enumerate(rows):
        if not row.ndim:
            raise TypeError(
                f"row {index} is no list and no array: {row.tolist()!r}; pad takes a list of rows"
            )
        if 0 in row.shape:
            continue
        own = tuple(row.shape[1:])
        tail = own if tail is None else tail
        if own != tail:  # else numpy might repeat its values
            raise ValueError(
                f"row {index} has elements of shape {own}, and those before it of {tail}: rows may"
                f" differ in their length only"
            )
    return tail or ()
