"""Arrays and tensors as lists of numbers, for JSON that other programs read."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from importlib.util import find_spec
from operator import is_
from typing import Any

from celery_batch.serialization.arrays import EncodedArray, is_array

__all__ = ["array_as_list", "as_lists", "finite", "list_rows", "to_numpy", "with_parts"]

#: Types of which no part is changed.
_SIMPLE = frozenset((str, int, float, bool, type(None)))

#: Kinds of NumPy's dtypes whose elements JSON has: booleans, numbers and texts.
_KINDS = frozenset("biufU")

#: Torch's dtypes of numbers that NumPy has; the others have less than 32 bits.
_FLOATS = ("torch.float64", "torch.float32", "torch.float16")


def as_lists(value: Any) -> Any:
    """
    Return a value with its arrays and tensors as lists, also within lists, tuples and dicts.

    NaN and infinities of arrays become None, since JSON has no such numbers.

    Args:
        value: What a batch task returned, or a list or dict of it.

    Returns:
        The same object if it has no arrays.

    Raises:
        TypeError: An array has complex numbers, times or bytes, which JSON has not.
    """
    return with_parts(value, _listed)


def _listed(value: Any) -> Any:
    if is_array(value):
        return finite(array_as_list(value))
    return finite(value.item()) if _is_number(value) else value


def with_parts(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a value with parts that are no numbers and texts changed; itself if none is."""
    kind = type(value)
    if kind in _SIMPLE:
        return value
    if kind is list or kind is tuple:
        if _SIMPLE.issuperset(map(type, value)):
            return value
        found = [with_parts(each, change) for each in value]
        return value if all(map(is_, found, value)) else kind(found)
    if kind is dict:
        values = {key: with_parts(each, change) for key, each in value.items()}
        return value if all(map(is_, values.values(), value.values())) else values
    return change(value)


def list_rows(outputs: Any) -> Any:
    """Return a batch's outputs with arrays as lists of numbers, but those that JSON has not."""
    if not isinstance(outputs, list | tuple):
        return outputs
    return [_list_row(each) if is_array(each) else each for each in outputs]


def _list_row(array: Any) -> Any:
    try:
        return array_as_list(array)
    except TypeError:
        return array


def array_as_list(array: Any) -> Any:
    """Return an array or a tensor as nested lists, or its only element; raise `TypeError`."""
    if isinstance(array, EncodedArray) and find_spec("numpy") is None:
        try:
            return _decoded_lists(array)
        except TypeError:
            raise TypeError(f"without NumPy JSON has no {array!r}") from None
    if _is_plain_tensor(array):
        return array.tolist()
    found = to_numpy(array)
    dtype = getattr(found, "dtype", "objects")
    if getattr(dtype, "kind", "") not in _KINDS:
        raise TypeError(
            f"JSON has no array of {dtype}: use .astype() with a dtype of numbers or texts, or"
            f" send the real and imaginary parts of complex numbers separately"
        )
    return found.tolist()


def _is_plain_tensor(array: Any) -> bool:
    """Return whether an array is a tensor that has lists of JSON's numbers without NumPy."""
    torch = sys.modules.get("torch")
    return (
        torch is not None
        and isinstance(array, torch.Tensor)
        and array.layout is torch.strided
        and not (array.is_complex() or array.is_quantized or array.is_nested)
    )


def _decoded_lists(array: EncodedArray) -> Any:
    """Return an encoded array as lists, without NumPy."""
    if not array.shape:
        row = EncodedArray(array.kind, array.dtype, (1,), array.tobytes())
        return next(iter(row))
    return [_decoded_lists(each) if is_array(each) else each for each in array]


def to_numpy(array: Any) -> Any:
    """Return any array as one of NumPy, torch's small floats as float32; else raise `TypeError`."""
    torch = sys.modules.get("torch")
    if isinstance(array, EncodedArray):
        found = array.decode()
        if isinstance(found, EncodedArray):
            raise TypeError(f"{array!r} cannot be decoded here")
        array = found
    if torch is None or not isinstance(array, torch.Tensor):
        return array
    array = array.detach().cpu().resolve_conj().resolve_neg()
    if array.is_floating_point() and str(array.dtype) not in _FLOATS:
        array = array.float()
    return array.numpy()


def finite(value: Any) -> Any:
    """Return a value of JSON with None in place of NaN and infinities."""
    kind = type(value)
    if kind is float:
        return value if math.isfinite(value) else None
    if kind is list or kind is tuple:
        return [finite(each) for each in value]
    if kind is dict:
        return {key: finite(each) for key, each in value.items()}
    return value


def _is_number(value: Any) -> bool:
    """Return whether a value is a number of NumPy that has one of Python."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic) and value.dtype.kind in "biuf"
