"""Copies and checks what a model has returned for a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from numbers import Real
from typing import Any

from celery_batch.errors import WrongResultCount

__all__ = ["checked", "owned"]

#: Types of values in which no array can be.
_PLAIN = frozenset((str, bytes, int, float, bool, type(None)))

#: Levels of lists and dicts in which arrays are looked for.
_LEVELS = 5


def owned(value: Any, *, on_device: bool = False, levels: int = _LEVELS) -> Any:
    """
    Return a value with copies of its arrays, also within lists, tuples and dicts of any class.

    A model may fill the same memory again while its last outputs are encoded, or uncollated.
    Copies of tensors are in the memory of the CPU, unless they are to stay on their device.
    """
    if type(value) in _PLAIN or not levels:
        return value
    if isinstance(value, (dict, list, tuple)):
        return _with_parts(value, partial(owned, on_device=on_device, levels=levels - 1))
    if hasattr(value, "detach"):
        return value.detach().clone() if on_device else value.detach().to("cpu", copy=True)
    return copy(value) if hasattr(value, "tolist") else value


def _with_parts(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a dict, list or tuple of any class with its parts changed; itself if all are plain."""
    kind, parts = type(value), value.values() if isinstance(value, dict) else value
    if _PLAIN.issuperset(map(type, parts)):
        return value
    if isinstance(value, dict):
        found = copy(value)
        for key, each in value.items():
            found[key] = change(each)
        return found
    changed = [change(each) for each in parts]
    return changed if kind is list else getattr(kind, "_make", kind)(changed)


def checked(name: str, outputs: Any, size: int, filling: int = 0) -> Sequence[Any]:
    """Return a model's outputs as a sequence, one for each item; `filling` of them filled it up."""
    if hasattr(outputs, "tolist"):  # an array or a tensor, of whatever library
        is_split = _is_complex(outputs) and outputs.shape  # JSON has no complex of Python's
        outputs = list(outputs) if is_split else outputs.tolist()
    batch = f"a batch of {size}"
    if filling:
        batch += f" ({size - filling} filled up with {filling} more to one of batch_sizes)"
    if isinstance(outputs, (str, bytes, bytearray)) or not isinstance(outputs, Sequence):
        raise WrongResultCount(
            f"{name} returned {_describe(outputs)} for {batch};"
            f" it must return a list with one output per input, in order"
        )
    if isinstance(outputs, tuple) and _are_columns(outputs, size):
        raise WrongResultCount(
            f"{name} returned a tuple of {len(outputs)} columns for {batch}; it must return one"
            f" output per input, in order, as in: return list(zip(scores, labels))"
        )
    if len(outputs) != size:
        raise WrongResultCount(
            f"{name} returned {len(outputs)} outputs for {batch};"
            f" it must return one output per input, in order{_repeated(len(outputs), size)}"
        )
    return outputs


def _is_complex(array: Any) -> bool:
    """Return whether an array of NumPy or a tensor of torch has complex numbers."""
    dtype = getattr(array, "dtype", None)
    return getattr(dtype, "kind", "") == "c" or getattr(dtype, "is_complex", False) is True


def _describe(outputs: Any) -> str:
    return "None" if outputs is None else f"a value of type {type(outputs).__name__}"


def _are_columns(outputs: tuple[Any, ...], size: int) -> bool:
    """Return whether a tuple's values, each as long as the batch, cannot be outputs of items."""
    if len(outputs) < 2 or any(_row_count(each) != size for each in outputs):  # noqa: PLR2004
        return False
    types = set(map(_row_type, outputs))
    if not any(hasattr(each, "tolist") for each in outputs):
        types.discard(None)
    return len(outputs) != size or len(types) > 1


def _row_count(values: Any) -> int | None:
    """Return how many rows a list, an array or a tensor has; None for anything else."""
    if type(values) in (list, tuple):
        return len(values)
    shape = getattr(values, "shape", None) if hasattr(values, "tolist") else None
    return shape[0] if shape else None


def _row_type(values: Any) -> Any:
    """Return what the rows of an array or a list have in common; None for nothing."""
    if not hasattr(values, "tolist"):
        kinds = {Real if isinstance(each, Real) else type(each) for each in values}
        return kinds.pop() if len(kinds) == 1 else None
    dtype = getattr(values, "dtype", None)
    return getattr(dtype, "char", dtype), tuple(values.shape[1:])  # texts may differ in length


def _repeated(outputs: int, size: int) -> str:
    """Return a hint for a function that takes its parameters for values of one item."""
    times, rest = divmod(outputs, size)
    if rest or times < 2:  # noqa: PLR2004 (twice)
        return ""
    return f"; its parameters are lists with a value for each item, and a list * {times} repeats it"
