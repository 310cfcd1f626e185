"""
The format .npy: the bytes of an array behind a header that names its dtype and its shape.

Nothing is pickled and no object is unpickled.  NumPy is needed to decode, not to encode.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from importlib import import_module
from math import prod
from typing import Any

from celery_batch.serialization.arrays import NDARRAY, array_parts, is_array
from celery_batch.serialization.lists import to_numpy

__all__ = ["decode_npy", "encode_npy", "npy_header", "numeric_array"]

#: What a file begins with: the format's name and its version 1.0.
_MAGIC = b"\x93NUMPY\x01\x00"

#: The elements begin at a multiple of so many bytes, for readers that map the file to memory.
_ALIGNED = 64

#: Characters of the number of rows: with another number the header has the same length.
_ROWS_WIDTH = 20

#: Kinds of NumPy's dtypes that a row may have: booleans, numbers and times.
_KINDS = frozenset("biufcmM")


def npy_header(dtype: str, shape: Sequence[int]) -> bytes:
    """Return the header of an array in C order, as long with more rows: it can be written again."""
    words = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {tuple(shape)!r}, }}"
    rows = len(str(shape[0])) if shape else 0
    words += " " * (_ROWS_WIDTH - rows)
    length = len(_MAGIC) + struct.calcsize("<H") + len(words) + 1
    words += " " * (-length % _ALIGNED) + "\n"
    return _MAGIC + struct.pack("<H", len(words)) + words.encode("latin1")


def encode_npy(value: Any) -> bytes:
    """Return an array, or a list of equal ones or of numbers as one, as the bytes of .npy."""
    if is_array(value):
        dtype, shape, data = _parts(value)
        return b"".join((npy_header(dtype, shape), data))
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"a {type(value).__name__} is no array, nor a list of arrays")
    if not value:
        raise ValueError("there is no output, so no dtype")
    if not all(map(is_array, value)):
        return encode_npy(numeric_array(value))
    rows = [_parts(each) for each in value]
    dtype, shape, _ = rows[0]
    for n, row in enumerate(rows):
        if row[:2] != (dtype, shape):
            raise ValueError(
                f"output {n} is an array of {row[0]} {row[1]}, and output 0 of {dtype} {shape}"
            )
    header = npy_header(dtype, [len(rows), *shape])
    return b"".join((header, *(data for *_, data in rows)))


def _parts(array: Any) -> tuple[str, list[int], Any]:
    """Return NumPy's name of an array's dtype, its shape, and its bytes."""
    kind, dtype, shape, data = array_parts(array)
    if kind != NDARRAY:
        _, dtype, shape, data = array_parts(to_numpy(array))
    return dtype, shape, data


def numeric_array(value: Any) -> Any:
    """Return an array of numbers or times; lists and numbers become one."""
    if is_array(value):
        array = to_numpy(value)
    elif isinstance(value, (list, tuple, int, float, complex)) or hasattr(value, "dtype"):
        array = import_module("numpy").asarray(value)
    else:
        raise TypeError(f"a {type(value).__name__} is no array of numbers")
    if array.dtype.kind not in _KINDS:
        raise TypeError(f"a {type(value).__name__} of {array.dtype} is no array of numbers")
    return array


def decode_npy(body: bytes) -> Any:
    """Return the array of .npy as a view that cannot be changed; refuse wrong sizes and objects."""
    numpy, form = import_module("numpy"), import_module("numpy.lib.format")
    file = io.BytesIO(body)
    try:
        version = form.read_magic(file)
        read_header = {
            (1, 0): form.read_array_header_1_0,
            (2, 0): form.read_array_header_2_0,
        }[version]
        shape, is_fortran, dtype = read_header(file)
    except Exception as error:  # noqa: BLE001 (a parser of Python's literals may raise anything)
        raise ValueError(f"it is no .npy of version 1 or 2: {error}") from None
    if dtype.hasobject or dtype.fields is not None or dtype.subdtype is not None:
        raise ValueError(f"an array of {dtype} is not read: it has objects or structures")
    start = file.tell()
    size = prod(shape) * dtype.itemsize
    if shape and shape[0] and not size:  # there could be any number of them
        raise ValueError(f"{dtype} {list(shape)} has rows without elements")
    if min(shape, default=0) < 0 or size != len(body) - start:
        raise ValueError(f"{dtype} {list(shape)} has {size} bytes, got {len(body) - start}")
    return numpy.ndarray(shape, dtype, body, start, order="F" if is_fortran else "C")
