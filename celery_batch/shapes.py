"""The shapes of a task's calls of its model: fixed sizes and lengths, and the warm-up with each."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable
from itertools import cycle, islice
from typing import Any

from celery_batch.config import isolates_failures, policy_of, steps_of
from celery_batch.errors import ConfigurationError
from celery_batch.pending_answer import pending_answer
from celery_batch.runtime.model import Model
from celery_batch.runtime.registry import instance_of, model_calls
from celery_batch.runtime.runner import FixedSizes, run_all
from celery_batch.runtime.signature import example_rows, row_of

__all__ = ["check_shapes", "fixed_sizes_of", "has_shapes", "warm_up"]

logger = logging.getLogger(__name__)

#: Seconds between two lines of the log about the progress of a warm-up.
_LOG_EVERY = 5.0

Row = tuple[Any, ...]


def has_shapes(task: Any) -> bool:
    """Return whether the calls of a task's model have fixed sizes."""
    return bool(steps_of(task, "batch_sizes"))


def check_shapes(task: Any) -> None:
    """
    Check a task's options of fixed shapes.

    Raises:
        ConfigurationError: They contradict each other, or one is missing.
    """
    sizes, lengths = steps_of(task, "batch_sizes"), steps_of(task, "batch_lengths")
    for name, needed in (("padding_row", sizes), ("example", lengths)):
        if _own(task, name) is not None and not needed:
            option = "batch_sizes" if name == "padding_row" else "batch_lengths"
            raise ConfigurationError(f"{task.name}.{name}: has no effect without {option}")
    if sizes and task.max_batch_size not in (None, sizes[-1]):
        raise ConfigurationError(
            f"{task.name}.max_batch_size: is the largest of batch_sizes, {sizes[-1]};"
            f" leave it out, got {task.max_batch_size}"
        )
    model = task.model
    if model is not None and task.batch_lengths and lengths != tuple(model.batch_lengths or ()):
        raise ConfigurationError(
            f"{task.name}.batch_lengths: belongs into the class {model.__qualname__},"
            f" whose predict pads to these lengths"
        )
    if lengths and _own(task, "example") is None and (model is None or not _has_example(model)):
        raise ConfigurationError(
            f"{task.name}.batch_lengths: needs example(length), which returns an input of a"
            f" length, to warm up with"
        )
    _check_padding_row(task, sizes)


def _check_padding_row(task: Any, sizes: Any) -> None:
    padding = _padding_row(task)
    if sizes and padding is None and not isolates_failures(task):
        raise ConfigurationError(
            f"{task.name}.batch_sizes: needs padding_row where isolate_failures is False: without"
            f" it the last row is repeated, and the function would see an item twice"
        )
    if padding is not None and not callable(padding):
        _row(task, padding)


def fixed_sizes_of(task: Any) -> FixedSizes | None:
    """Return the sizes of a task's calls, and what fills them up; None if they have any size."""
    sizes, padding = steps_of(task, "batch_sizes"), _padding_row(task)
    if not sizes:
        return None
    if padding is None:
        return FixedSizes(sizes)
    return FixedSizes(sizes, lambda: _filler(task, instance_of(task.model) if task.model else None))


def warm_up(task: Any, instance: Model | None = None) -> None:
    """
    Call a task's model once with each shape that can occur, the largest first.

    Args:
        task: The task.
        instance: Of its model, if it has one.

    Raises:
        Exception: What the model raises.
    """
    calls = _run_function(task) if instance is None else model_calls(instance)
    shapes = policy_of(task).shapes(task.max_item_cost)
    began = logged = time.monotonic()
    for number, (size, length) in enumerate(shapes, 1):
        rows = _rows(task, instance, length)
        if not rows:
            logger.info("%s: no examples and no padding_row to warm up with", task.name)
            return
        columns = [list(column) for column in zip(*islice(cycle(rows), size), strict=True)]
        run_all(f"{task.name} with {_shape(size, length)}", calls, columns)
        if time.monotonic() - logged >= _LOG_EVERY:
            logged = time.monotonic()
            logger.info("%s: warmed up with %d of %d shapes", task.name, number, len(shapes))
    seconds = time.monotonic() - began
    logger.info("%s: warmed up with %d shapes in %.1f s", task.name, len(shapes), seconds)


def _run_function(task: Any) -> Callable[..., Any]:
    def run(*columns: list[Any]) -> Any:
        with pending_answer.running_batch():
            return task._run_columns(*columns)

    return run


def _rows(task: Any, instance: Model | None, length: int | None) -> list[Row]:
    """Return rows to warm up with, of a length if it is fixed."""
    own = _own(task, "example")
    if length is not None:
        example = own if own is not None else instance.example  # type: ignore[union-attr]
        return [row_of(f"{task.name}.example", task._batch_signature, example(length))]
    rows = [] if instance is None else example_rows(type(instance), instance.examples())
    return rows or ([] if _padding_row(task) is None else [_filler(task, instance)])


def _filler(task: Any, instance: Model | None) -> Row:
    """Return the padding row, a value for each parameter."""
    padding = _own(task, "padding_row")
    if padding is None:
        padding = instance.padding_row  # type: ignore[union-attr]
    return _row(task, padding() if callable(padding) else padding)


def _row(task: Any, padding: Any) -> Row:
    return row_of(f"{task.name}.padding_row", task._batch_signature, padding)


def _padding_row(task: Any) -> Any:
    """Return the padding row as it was written, the task's own or its model's."""
    own = _own(task, "padding_row")
    return task.model.padding_row if own is None and task.model is not None else own


def _own(task: Any, name: str) -> Any:
    """Return a task's attribute as it was written: a function is no method of its instances."""
    cls = task if isinstance(task, type) else task.__class__
    found = inspect.getattr_static(cls, name)
    return getattr(found, "__func__", found)  # of a static method


def _has_example(model: type[Model]) -> bool:
    return inspect.getattr_static(model, "example") is not inspect.getattr_static(Model, "example")


def _shape(size: int, length: int | None) -> str:
    return f"{size} rows" if length is None else f"{size} rows of length {length}"
