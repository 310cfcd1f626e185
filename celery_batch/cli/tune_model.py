"""The model that is tuned, loaded as a worker's process would load it."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from itertools import islice
from typing import Any

from celery_batch.backfill.arguments import Arguments, some_fit
from celery_batch.backfill.inputs import Input
from celery_batch.errors import ConfigurationError, ModelError, OutOfMemory
from celery_batch.seat import seat
from celery_batch.serving.residents import resident
from celery_batch.serving.signature import example_rows
from celery_batch.task import BatchTask
from celery_batch.tuning.measure import Seen

__all__ = ["MOST_ROWS", "Probe", "rows_for"]

#: Rows of an input that are kept to measure with.
MOST_ROWS = 10_000

#: What is called with each run.
Row = tuple[Any, ...]


def rows_for(task: BatchTask, source: str | None, field: str | None = None) -> list[Row]:
    """
    Return what to measure a task with: rows of a file, else its model's own examples.

    Args:
        task: The task; its model is loaded.
        source: A file, a folder, or - for standard input, as for a backfill.
        field: The field that is the task's only argument.

    Raises:
        BackfillError: The rows do not fit the task; those that do not are left out, if others do.
        ConfigurationError: There is nothing to measure with.
    """
    if source is not None:
        found = Input(source)
        field = field or ("file" if found.kind == "files" else None)
        records = islice(found.records(), MOST_ROWS)
        arguments = Arguments(task.batch_signature, field=field)
        found_rows = some_fit(arguments.rows(records, found.line))
        rows = [row.values for row in found_rows if not row.flaw]
    else:
        model = task.model
        rows = [] if model is None else example_rows(model, resident(model).examples())
    if rows:
        return rows
    if source is not None:
        raise ConfigurationError(f"{source}: has no rows to measure with")
    what = "its model has no examples()" if task.model is not None else "it is a function"
    raise ConfigurationError(
        f"{task.name}: {what}, so there is nothing to measure with;"
        f" give --input rows.jsonl, a line for each call such as callers make"
    )


class Probe:
    """
    Runs batches of a task in this process, and takes the time.

    Args:
        task: The task; its model is loaded.
        rows: What to ask, again and again in turn.
    """

    def __init__(self, task: BatchTask, rows: Sequence[Row]) -> None:
        self._task = task
        self._rows = rows
        self._next = 0

    def __call__(self, size: int) -> Seen:
        """
        Run one batch.

        Args:
            size: Rows in it.

        Raises:
            OutOfMemory: It did not fit.
            ModelError: The model could not answer a row.
        """
        batch = [self._rows[(self._next + n) % len(self._rows)] for n in range(size)]
        self._next = (self._next + size) % len(self._rows)
        columns = [list(column) for column in zip(*batch, strict=True)]
        runner = self._task.whole_runner()  # a new one: it remembers what did not fit
        torch = _awake_torch()
        if torch is not None:
            torch.cuda.reset_peak_memory_stats()
        with seat.running_batch():
            began = time.perf_counter()
            outcomes = runner.run(*columns)
            seconds = time.perf_counter() - began
        for row, outcome in zip(batch, outcomes, strict=True):
            self._refuse(row, outcome.error)
        return Seen(seconds, torch.cuda.max_memory_allocated() if torch is not None else None)

    def _refuse(self, row: Row, error: Exception | None) -> None:
        if isinstance(error, OutOfMemory):
            raise error
        if error is not None:
            kind = type(error).__name__
            raise ModelError(
                f"{self._task.name}: {_quoted(row)} was answered with {kind}: {error};"
                f" measure with rows that it can answer, by --input"
            ) from error


def _awake_torch() -> Any:
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_initialized() else None


def _quoted(row: Row) -> str:
    text = ascii(row[0] if len(row) == 1 else row)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004 (a line's worth)
