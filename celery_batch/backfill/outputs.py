"""Writes outputs: JSON lines, CSV, Parquet, .npy; there is no file until it is whole."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from celery_batch.backfill.checkpoint import replacing
from celery_batch.backfill.inputs import SUFFIXES, need_arrow
from celery_batch.backfill.list_columns import array_column, list_type
from celery_batch.backfill.npy import ArrayRows, need_numpy
from celery_batch.backfill.window import byte_size
from celery_batch.errors import BackfillError
from celery_batch.serialization.arrays import is_array
from celery_batch.serialization.lists import array_as_list
from celery_batch.serialization.typed_json import array_as_typed

__all__ = ["format_of", "write_output"]

#: Rows and bytes of outputs of a Parquet file that are in memory at once.
_PARQUET_ROWS = 8192
_PARQUET_BYTES = 8 << 20

_COLUMNS = ("key", "output", "error")

Records = Iterable[dict[str, Any]]

#: Reads the records of a checkpoint, each time anew.
Read = Callable[[], Records]


def _as_json(value: Any) -> Any:
    """Return an array as lists of numbers; as a typed value where JSON has no such numbers."""
    if not is_array(value):
        raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
    try:
        return array_as_list(value)
    except TypeError:
        return array_as_typed(value)


_encode = json.JSONEncoder(ensure_ascii=False, default=_as_json).encode
_encode_ascii = json.JSONEncoder(default=_as_json).encode


def format_of(output: Path) -> str:
    """Return an output's format, by its suffix."""
    found = SUFFIXES.get(output.suffix.lower(), "")
    if not found:
        known = ", ".join(SUFFIXES)
        raise BackfillError(f"{output}: its suffix names no format; give it one of {known}")
    if found == "parquet":
        need_arrow(str(output))
    if found == "npy":
        need_numpy(str(output))
    return found


def write_output(output: Path, read: Read, kind: str, array_rows: ArrayRows | None = None) -> None:
    """Write all answers, and give the file its name once it is whole and safe."""
    with replacing(output) as fresh:
        if kind == "npy":
            (array_rows or ArrayRows(output, read())).write(fresh, read())
        else:
            _FORMATS[kind](fresh, read)


def _json_lines(path: Path, read: Read) -> None:
    with path.open("w", encoding="utf-8") as file:
        for record in read():
            file.write(_json(_public(record)) + "\n")


def _csv(path: Path, read: Read) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(_COLUMNS)
        writer.writerows(map(_cells, read()))


def _parquet(path: Path, read: Read) -> None:
    import pyarrow as pa  # noqa: PLC0415 (only Parquet needs it)
    from pyarrow import parquet  # noqa: PLC0415 (likewise)

    lists = list_type(each.get("output") for each in read() if not each.get("error"))
    kinds = (pa.string(), lists or pa.string(), pa.string())
    schema = pa.schema(list(zip(_COLUMNS, kinds, strict=True)))
    with parquet.ParquetWriter(path, schema) as writer:
        for some in _in_memory(read()):
            keys = [_encodable(each["key"]) for each in some]
            errors = [_encodable(each.get("error") or "") or None for each in some]
            arrays = [None if each.get("error") else each.get("output") for each in some]
            output = array_column(arrays, lists) if lists else [*map(_text, some)]
            writer.write_table(pa.table([keys, output, errors], schema))


def _in_memory(records: Records) -> Iterator[list[dict[str, Any]]]:
    """Yield records, as many at a time as may be in memory."""
    some, size = [], 0
    for record in records:
        some.append(record)
        size += byte_size(record.get("output"))
        if len(some) == _PARQUET_ROWS or size >= _PARQUET_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


def _cells(record: dict[str, Any]) -> list[str]:
    return [_encodable(record["key"]), _text(record), _encodable(record.get("error") or "")]


def _public(record: dict[str, Any]) -> dict[str, Any]:
    end = "error" if record.get("error") else "output"
    return {"key": record["key"], end: record.get(end)}


def _text(record: dict[str, Any]) -> str:
    """Return an output as a table has it: texts as they are, all else as JSON."""
    output = record.get("output")
    if record.get("error"):
        return ""
    return _encodable(output if isinstance(output, str) else _json(output))


def _json(value: Any) -> str:
    """Return JSON with characters as they are, if they can be encoded."""
    text = _encode(value)
    return text if _encodable(text) == text else _encode_ascii(value)


def _encodable(text: str) -> str:
    """Return a text without surrogates, which no file can encode."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


#: What can be written, and how.
_FORMATS: dict[str, Callable[[Path, Read], None]] = {
    "jsonl": _json_lines,
    "csv": _csv,
    "parquet": _parquet,
}
