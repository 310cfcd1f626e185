"""The rows of a whole output that have failed, and a second try at them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from celery_batch.backfill.disk import sync_folder, writing
from celery_batch.backfill.inputs import Input
from celery_batch.backfill.ledger import Ledger
from celery_batch.backfill.rows import Unreadable
from celery_batch.errors import BackfillError

__all__ = ["Failures"]


class Failures:
    """
    The file beside an output that names its failed rows.

    People read it, too: whatever it counts begins with 1, as their editors do.

    Args:
        output: The path of the output.
    """

    def __init__(self, output: Path) -> None:
        self._output = output
        self.path = output.with_name(f"{output.name}.errors")

    def write(self, records: Iterable[dict[str, Any]]) -> None:
        """Write down which of an output's records have failed; no file if none has."""
        fresh = self.path.with_name(f"{self.path.name}.new")
        with writing(self.path):
            if _write(fresh, records):
                fresh.replace(self.path)
            else:
                fresh.unlink()
                self.path.unlink(missing_ok=True)
            sync_folder(self.path.parent)

    def keys(self) -> dict[int, str]:
        """
        Return the failed rows' positions in the input, and their names.

        Raises:
            BackfillError: There is no such output, or nothing in it has failed.
        """
        return {each["input_row"] - 1: each["key"] for each in self._read()}

    def count(self) -> int:
        """Return how many of an output's rows have failed."""
        try:
            with self.path.open("rb") as file:
                return sum(1 for _ in file)
        except FileNotFoundError:
            return 0

    def _read(self) -> list[dict[str, Any]]:
        if not self._output.exists():
            has_begun = Ledger.paths(self._output)[0].exists()
            what = "is not complete yet" if has_begun else "is not there"
            raise BackfillError(f"{self._output}: {what}; run without --retry-errors first")
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise BackfillError(f"{self._output}: none of its rows has failed") from None
        return [json.loads(line) for line in text.split("\n") if line]

    def merged(self, answers: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """
        Yield the output's records, with other answers in place of those that failed.

        Args:
            answers: As the ledger has them.
        """
        failed = {each["output_row"]: each for each in self._read()}
        rows = {each["input_row"] - 1: row for row, each in failed.items()}
        # Those that were taken in by an earlier try may not be among the failed any more.
        fresh = {rows[each["position"]]: each for each in answers if each["position"] in rows}
        for row, record in enumerate(Input(str(self._output)).records(), start=1):
            if isinstance(record, Unreadable):
                raise BackfillError(f"{self._output}: was changed: {record.why}")
            kept = {name: value for name, value in record.items() if value is not None}
            was = failed.get(row, {"input_row": 0})  # of those that have not failed nobody asks
            place = {"position": was["input_row"] - 1, "line": was.get("line", 0)}
            yield fresh.get(row, kept | place)


def _write(path: Path, records: Iterable[dict[str, Any]]) -> int:
    """Write the records that have failed, and return how many they are."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for row, record in enumerate(records, start=1):
            if error := record.get("error"):
                count += 1
                line = {"line": record["line"]} if record["line"] else {}
                place = {**line, "input_row": record["position"] + 1, "output_row": row}
                file.write(json.dumps({"key": record["key"], "error": error, **place}) + "\n")
    return count
