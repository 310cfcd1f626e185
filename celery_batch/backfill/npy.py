"""
Arrays in .npy files: a row of the input is one of the first dimension, and so of the output.

Rule 1: a file is mapped to memory, not read as a whole, and no object in it is unpickled.
Rule 2: row n of an output is of row n of the input; a failed row is filled with NaN or 0.
Rule 3: the first output decides which dtype and shape all have; another one is a failed row, so
        that nothing else that was computed is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from celery_batch.backfill.window import Answer
from celery_batch.errors import BackfillError
from celery_batch.serialization.npy import npy_header, numeric_array

__all__ = ["ArrayRows", "need_numpy", "npy_rows", "opened_npy"]

#: Numbers of a file that are read at one go.
_NUMBERS = 4096

#: What a failed row has, by the kind of dtype; 0 for integers and booleans.
_MISSING = {"f": "nan", "c": "nan", "m": "NaT", "M": "NaT"}


def need_numpy(path: str) -> None:
    """Raise BackfillError if .npy cannot be read and written here."""
    if find_spec("numpy") is None:
        raise BackfillError(f"{path}: .npy needs NumPy: pip install numpy")


def opened_npy(path: str) -> Any:
    """Return the array in a file, mapped to memory."""
    need_numpy(path)
    if path == "-":
        raise BackfillError("-: .npy is mapped to memory, which standard input cannot be")
    try:
        array = import_module("numpy.lib.format").open_memmap(path, mode="r")
    except (ValueError, OSError) as error:
        raise BackfillError(f"{path}: is no .npy that can be read: {error}") from None
    if not array.ndim:
        raise BackfillError(f"{path}: has a single value, and no dimension of rows")
    if array.dtype.fields is not None or array.dtype.kind not in "biufcmMSU":
        raise BackfillError(f"{path}: has {array.dtype}, which cannot be sent: use its columns")
    return array


def npy_rows(path: str) -> Iterator[Any]:
    """Yield the rows of a file: arrays, or numbers where it has one dimension."""
    array = opened_npy(path)
    if array.ndim == 1:
        for start in range(0, len(array), _NUMBERS):
            yield from _values(array[start : start + _NUMBERS])
        return
    yield from map(import_module("numpy").asarray, array)


def _values(numbers: Any) -> list[Any]:
    """Return Python's numbers and texts, and NumPy's where Python has none."""
    return numbers.tolist() if numbers.dtype.kind in "biufSU" else list(numbers)


class ArrayRows:
    """Outputs as the rows of one array, all like the first output of the given records."""

    def __init__(self, output: Path, records: Iterable[dict[str, Any]] = ()) -> None:
        need_numpy(str(output))
        self._output = output
        first = next((each for each in records if not each.get("error")), None)
        self._row: Any = None if first is None else numeric_array(first["output"])

    def checked(self, answer: Answer) -> Answer:
        """Return an answer; an error if its output does not fit among the others."""
        if answer.error:
            return answer
        try:
            row = numeric_array(answer.output)
        except (TypeError, ValueError) as error:
            if self._row is None:
                raise BackfillError(
                    f"{self._output}: the output of {answer.row.title} is no row of an array,"
                    f" since {error}; name a .jsonl or .parquet output, or have the task return"
                    " one array for each item"
                ) from None
            return self._failed(answer, f"no row of an array, since {error}")
        if self._row is None:
            self._row = row
        return answer if self._fits(row) else self._failed(answer, _shown(row))

    def _fits(self, row: Any) -> bool:
        numpy = import_module("numpy")
        is_alike = row.shape == self._row.shape
        return bool(is_alike and numpy.can_cast(row.dtype, self._row.dtype, "safe"))

    def _failed(self, answer: Answer, found: str) -> Answer:
        wanted = f"{self._output.name} has rows of {_shown(self._row)}, as its first output"
        error = f"InvalidOutput: the output of {answer.row.title} is {found}, and {wanted}"
        return Answer(answer.row, error=error)

    def write(self, path: Path, records: Iterable[dict[str, Any]]) -> None:
        """Write the outputs of records at their positions, and fill the rows of failed ones."""
        numpy = import_module("numpy")
        row = numpy.empty(()) if self._row is None else self._row  # None where all have failed
        dtype = row.dtype.newbyteorder("<")
        missing = numpy.full(row.shape, _MISSING.get(dtype.kind, 0), dtype).tobytes()
        rows = at = 0
        with path.open("wb") as file:
            start = file.write(npy_header(dtype.str, (rows, *row.shape)))
            for record in records:
                position = record["position"]
                if position != at:  # the outputs are in another order than the input
                    file.seek(start + position * len(missing))
                if record.get("error"):
                    file.write(missing)
                else:
                    output = numeric_array(record["output"])
                    file.write(output.astype(dtype, casting="safe").tobytes())
                at = position + 1
                rows = max(rows, at)
            file.seek(0)
            file.write(npy_header(dtype.str, (rows, *row.shape)))


def _shown(row: Any) -> str:
    return f"{row.dtype} {list(row.shape)}"
