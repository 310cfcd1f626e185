"""Where answers go: JSON lines, CSV, Parquet; there is none until it is whole."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from celery_batch.backfill.checkpoint import sync_folder, writing
from celery_batch.backfill.inputs import need_arrow
from celery_batch.errors import BackfillError

__all__ = ["FORMATS", "format_of", "write_output"]

#: Rows of a Parquet file that are in memory at once.
_PARQUET_ROWS = 8192

_encode = json.JSONEncoder(ensure_ascii=False).encode

Records = Iterable[dict[str, Any]]


def format_of(output: Path, given: str = "") -> str:
    """
    Return an output's format.

    Args:
        output: Its path.
        given: The format, where it is not the suffix's.

    Raises:
        BackfillError: It is not known, or there is nothing to write it with.
    """
    found = given or _SUFFIXES.get(output.suffix.lower(), "")
    if found not in FORMATS:
        known = ", ".join(FORMATS)
        raise BackfillError(f"{output}: its format is not known; name one of {known}")
    if found == "parquet":
        need_arrow(str(output))
    return found


def write_output(output: Path, records: Records, kind: str) -> None:
    """
    Write all answers, and give the file its name once it is whole and safe.

    Args:
        output: Replaced, if it is there.
        records: As the ledger has them.
        kind: A name in `FORMATS`.

    Raises:
        BackfillError: The disk is full, say.
    """
    fresh = output.with_name(f"{output.name}.new")
    try:
        with writing(output):
            FORMATS[kind](fresh, records)
            with fresh.open("rb") as file:
                os.fsync(file.fileno())
            fresh.replace(output)
            sync_folder(output.parent)
    except BaseException:
        fresh.unlink(missing_ok=True)  # a full disk has no room for half an output
        raise


def _json_lines(path: Path, records: Records) -> None:
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(_said(_public(record)) + "\n")


def _csv(path: Path, records: Records) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("key", "output", "error"))
        for record in records:
            error = record.get("error") or ""
            writer.writerow(map(_sound, (record["key"], _text(record), error)))


def _parquet(path: Path, records: Records) -> None:
    import pyarrow as pa  # noqa: PLC0415 (who writes none needs no Arrow)
    from pyarrow import parquet  # noqa: PLC0415 (likewise)

    schema = pa.schema([(name, pa.string()) for name in ("key", "output", "error")])
    with parquet.ParquetWriter(path, schema) as writer:
        rows: list[dict[str, Any]] = []
        for record in records:
            error = _sound(record.get("error") or "") or None
            key, output = _sound(record["key"]), _sound(_text(record))
            rows.append({"key": key, "output": output, "error": error})
            if len(rows) == _PARQUET_ROWS:
                writer.write_table(pa.Table.from_pylist(rows, schema))
                rows.clear()
        writer.write_table(pa.Table.from_pylist(rows, schema))


def _public(record: dict[str, Any]) -> dict[str, Any]:
    end = "error" if record.get("error") else "output"
    return {"key": record["key"], end: record.get(end)}


def _text(record: dict[str, Any]) -> str:
    """Return an output as it stands in a table: texts as they are, all else as JSON."""
    output = record.get("output")
    if record.get("error"):
        return ""
    return output if isinstance(output, str) else _said(output)


def _said(value: Any) -> str:
    """Return JSON that people can read, if there is an encoding for it."""
    text = _encode(value)
    return text if _sound(text) == text else json.dumps(value)


def _sound(text: str) -> str:
    """Return a text without halves of characters, which no file has an encoding for."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


#: What can be written, and how.
FORMATS: dict[str, Callable[[Path, Records], None]] = {
    "jsonl": _json_lines,
    "csv": _csv,
    "parquet": _parquet,
}

_SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}
