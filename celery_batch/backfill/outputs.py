"""Writes outputs: JSON lines, CSV, Parquet; there is no file until it is whole."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from celery_batch.backfill.checkpoint import replacing
from celery_batch.backfill.inputs import SUFFIXES, need_arrow
from celery_batch.errors import BackfillError

__all__ = ["format_of", "write_output"]

#: Rows of a Parquet file that are in memory at once.
_PARQUET_ROWS = 8192

_COLUMNS = ("key", "output", "error")

_encode = json.JSONEncoder(ensure_ascii=False).encode

Records = Iterable[dict[str, Any]]


def format_of(output: Path) -> str:
    """
    Return an output's format, by its suffix.

    Raises:
        BackfillError: It is not known, or there is nothing to write it with.
    """
    found = SUFFIXES.get(output.suffix.lower(), "")
    if not found:
        known = ", ".join(_FORMATS)
        raise BackfillError(f"{output}: its format is not known; name one of {known}")
    if found == "parquet":
        need_arrow(str(output))
    return found


def write_output(output: Path, records: Records, kind: str) -> None:
    """
    Write all answers, and give the file its name once it is whole and safe.

    Args:
        output: Replaced, if it is there.
        records: As in the checkpoint.
        kind: ``jsonl``, ``csv`` or ``parquet``.

    Raises:
        BackfillError: The disk is full, say.
    """
    with replacing(output) as fresh:
        _FORMATS[kind](fresh, records)


def _json_lines(path: Path, records: Records) -> None:
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(_json(_public(record)) + "\n")


def _csv(path: Path, records: Records) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(_COLUMNS)
        writer.writerows(map(_cells, records))


def _parquet(path: Path, records: Records) -> None:
    import pyarrow as pa  # noqa: PLC0415 (only Parquet needs it)
    from pyarrow import parquet  # noqa: PLC0415 (likewise)

    schema = pa.schema([(name, pa.string()) for name in _COLUMNS])
    rows = map(_cells, records)
    with parquet.ParquetWriter(path, schema) as writer:
        while some := list(islice(rows, _PARQUET_ROWS)):
            table = [dict(zip(_COLUMNS, (*row[:2], row[2] or None), strict=True)) for row in some]
            writer.write_table(pa.Table.from_pylist(table, schema))


def _cells(record: dict[str, Any]) -> list[str]:
    return [_encodable(text) for text in (record["key"], _text(record), record.get("error") or "")]


def _public(record: dict[str, Any]) -> dict[str, Any]:
    end = "error" if record.get("error") else "output"
    return {"key": record["key"], end: record.get(end)}


def _text(record: dict[str, Any]) -> str:
    """Return an output as a table has it: texts as they are, all else as JSON."""
    output = record.get("output")
    if record.get("error"):
        return ""
    return output if isinstance(output, str) else _json(output)


def _json(value: Any) -> str:
    """Return JSON with characters as they are, if they can be encoded."""
    text = _encode(value)
    return text if _encodable(text) == text else json.dumps(value)


def _encodable(text: str) -> str:
    """Return a text without surrogates, which no file can encode."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


#: What can be written, and how.
_FORMATS: dict[str, Callable[[Path, Records], None]] = {
    "jsonl": _json_lines,
    "csv": _csv,
    "parquet": _parquet,
}
