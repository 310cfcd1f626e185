"""Arrays in the list columns of Parquet files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from celery_batch.serialization.arrays import is_array
from celery_batch.serialization.lists import to_numpy

__all__ = ["array_column", "list_type", "parquet_values"]

#: Kinds of NumPy's dtypes that a list column may have: booleans and numbers.
_KINDS = frozenset("biuf")


def parquet_values(batch: Any) -> list[Any]:
    """Return a batch's records, with an error in place of one that Python cannot represent."""
    try:
        return _records(batch)
    except (ValueError, ArithmeticError) as error:  # such as a time between two microseconds
        if batch.num_rows == 1:
            return [error]
        return [parquet_values(batch.slice(n, 1))[0] for n in range(batch.num_rows)]


def _records(batch: Any) -> list[Any]:
    names, kinds = batch.schema.names, batch.schema.types
    has_numpy = find_spec("numpy") is not None
    arrays = {n for n, kind in enumerate(kinds) if has_numpy and _has_numbers(kind)}
    others = [n for n in range(len(names)) if n not in arrays]
    records: list[Any] = batch.select(others).to_pylist()
    if not arrays:
        return records
    for n in sorted(arrays):
        for record, scalar in zip(records, batch.column(n), strict=True):
            record[names[n]] = _value(scalar)
    return [{name: record[name] for name in names} for record in records]


def _has_numbers(kind: Any) -> bool:
    """Return whether a column has lists of numbers, or fixed arrays of them."""
    types = import_module("pyarrow").types
    if not _is_list(kind):
        return _is_tensor(kind)
    while _is_list(kind):
        kind = kind.value_type
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _is_tensor(kind: Any) -> bool:
    """Return whether a column has arrays of one shape, as Arrow's type for them says."""
    return isinstance(kind, import_module("pyarrow").FixedShapeTensorType)


def _is_list(kind: Any) -> bool:
    types = import_module("pyarrow").types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _value(scalar: Any) -> Any:
    """Return an array; a list where there are nulls in it, or rows of different lengths."""
    if not scalar.is_valid:
        return None
    if _is_tensor(scalar.type):
        return scalar.to_numpy()
    array = _array(scalar.values)
    return scalar.as_py() if array is None else array


def _array(values: Any) -> Any:
    """Return Arrow's values as an array of NumPy; None if they are none of one shape."""
    if values.null_count:
        return None
    if not _is_list(values.type):
        return values.to_numpy(zero_copy_only=False)
    rows = [_array(each.values) for each in values]
    if not rows or any(row is None or row.shape != rows[0].shape for row in rows):
        return None
    return import_module("numpy").stack(rows)


def list_type(outputs: Iterable[Any]) -> Any:
    """Return the type of a list column for outputs; None unless all are arrays of one kind."""
    forms = set()
    for output in outputs:
        if not is_array(output):
            return None
        array = to_numpy(output)
        forms.add((array.dtype, array.ndim))
        if len(forms) > 1:
            return None
    if not forms:
        return None
    ((dtype, dimensions),) = forms
    if dtype.kind not in _KINDS or not dimensions:
        return None
    arrow = import_module("pyarrow")
    kind = arrow.from_numpy_dtype(dtype)
    for _ in range(dimensions):
        kind = arrow.list_(kind)
    return kind


def array_column(outputs: Sequence[Any], kind: Any) -> Any:
    """Return a list column."""
    rows = [None if output is None else _nested(to_numpy(output)) for output in outputs]
    return import_module("pyarrow").array(rows, kind)


def _nested(array: Any) -> Any:
    return array if array.ndim == 1 else [_nested(row) for row in array]
