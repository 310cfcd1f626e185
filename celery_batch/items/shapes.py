"""The shapes of a task's calls of its model: fixed sizes and lengths, and the warm-up with each."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import cycle, islice
from typing import Any

from celery_batch.batching.policy import BatchPolicy
from celery_batch.batching.shapes import round_up
from celery_batch.config import isolates_failures, policy_of, steps_of
from celery_batch.errors import (
    BatchError,
    ConfigurationError,
    InvalidCost,
    ItemTooLarge,
    LoadFailed,
)
from celery_batch.items.functions import item_cost_of, option_of
from celery_batch.items.pending_answer import pending_answer
from celery_batch.items.rows import columns_of
from celery_batch.runtime.model import Model
from celery_batch.runtime.registry import (
    Row,
    batches_of,
    instance_of,
    model_calls,
    warm_up_with,
)
from celery_batch.runtime.runner import FixedSizes, run_all
from celery_batch.runtime.signature import example_rows, own_attribute, row_of
from celery_batch.serialization.plain_values import NotPlain, encode_plain

__all__ = [
    "check_padding_cost",
    "check_shapes",
    "fixed_sizes_of",
    "has_shapes",
    "prepare_shapes",
    "warm_up",
]

logger = logging.getLogger(__name__)

#: Seconds between two lines of the log about the progress of a warm-up.
_LOG_EVERY = 5.0


def has_shapes(task: Any) -> bool:
    """Return whether the calls of a task's model have fixed sizes."""
    return bool(steps_of(task, "batch_sizes"))


def check_shapes(task: Any) -> None:
    """Check a task's options of fixed shapes."""
    _refuse_empty(task)
    sizes, lengths = steps_of(task, "batch_sizes"), steps_of(task, "batch_lengths")
    for name, needed in (("padding_row", sizes), ("example", lengths)):
        if own_attribute(task, name) is not None and not needed:
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
    has_example = own_attribute(task, "example") is not None or (
        model is not None and model.example is not Model.example
    )
    if lengths and not has_example:
        raise ConfigurationError(
            f"{task.name}.batch_lengths: needs example(length), which returns an input of a"
            f" length, to warm up with"
        )
    _check_padding_row(task, sizes)


def _refuse_empty(task: Any) -> None:
    for name in ("batch_sizes", "batch_lengths"):
        own, of_model = getattr(task, name), getattr(task.model, name, None)
        steps = of_model if own is None else own
        # A task may leave out the sizes that its model has.
        if isinstance(steps, (tuple, list)) and not steps and not of_model:
            raise ConfigurationError(f"{task.name}.{name}: has no effect if empty; leave it out")


def _check_padding_row(task: Any, sizes: Any) -> None:
    padding = option_of(task, "padding_row")
    if sizes and padding is not None and callable(option_of(task, "batch_by")):
        raise ConfigurationError(
            f"{task.name}.padding_row: cannot be used with a batch_by function, whose keys it would"
            f" not have; leave it out, and the last row of a call is repeated"
        )
    if sizes and padding is None and not isolates_failures(task):
        raise ConfigurationError(
            f"{task.name}.batch_sizes: needs padding_row where isolate_failures is False: without"
            f" it the last row is repeated, and the function would see an item twice"
        )
    if padding is not None and not callable(padding):
        _as_row(task, padding)


def check_padding_cost(task: Any) -> None:
    """Check what a task's padding row costs, unless only a worker has it."""
    padding = option_of(task, "padding_row")
    if not (padding is None or callable(padding) or hasattr(padding, "__get__")):
        _check_cost(task, _as_row(task, padding))


def _check_cost(task: Any, filler: Row) -> None:
    """Check that the padding row has a cost that items may have: else no call can be filled up."""
    item_cost = item_cost_of(task)
    if item_cost is None:
        return
    try:
        item_cost.of_call(filler, {})
    except (InvalidCost, ItemTooLarge) as error:
        raise ConfigurationError(
            f"{task.name}.padding_row: must have a cost that items may have: {error}"
        ) from error


def fixed_sizes_of(task: Any) -> FixedSizes | None:
    """Return the sizes of a task's calls, and what fills them up; None if they have any size."""
    sizes, padding = steps_of(task, "batch_sizes"), option_of(task, "padding_row")
    if not sizes:
        return None
    if padding is None:
        return FixedSizes(sizes)
    model = task.model
    return FixedSizes(sizes, lambda: _padding_row(task, instance_of(model) if model else None))


def prepare_shapes(task: Any) -> None:
    """Load and warm up what a task of fixed shapes runs, unless that was done before."""
    if not has_shapes(task):
        return
    try:
        warm_up_with(task.model, task.name, partial(warm_up, task))
    except BatchError as error:
        raise LoadFailed(str(error)) from error
    except (Exception, SystemExit) as error:
        raise LoadFailed(f"{task.name}: {type(error).__name__}: {error}") from error
    if task.model is not None:
        instance_of(task.model)


def warm_up(task: Any, instance: Model | None = None) -> None:
    """Call a task's model with each shape that can occur, the largest first, then its examples."""
    padding = [] if option_of(task, "padding_row") is None else [_padding_row(task, instance)]
    for row in padding:
        _check_cost(task, row)
    own = [] if instance is None else example_rows(type(instance), instance.examples())
    predict = _run_function(task) if instance is None else model_calls(instance)
    policy = policy_of(task)
    shapes, sizes = policy.shapes(task.max_item_cost), FixedSizes(policy.batch_sizes)
    examples = {
        length: own or padding if length is None else [_example(task, instance, length)]
        for _, length in shapes
    }
    _check_examples(task, policy, examples)
    key_of = None if task._item_key is None else lambda row: task._item_key.of_call(row, {})
    batches = {length: batches_of(rows, key_of) for length, rows in examples.items()}
    calls = [(size, length, rows) for size, length in shapes for rows in batches[length]]
    if not calls:
        logger.info("%s: no examples and no padding_row to warm up with", task.name)
    began = logged = time.monotonic()
    for number, (size, length, rows) in enumerate(calls, 1):
        columns = columns_of([*islice(cycle(rows), size)])
        run_all(f"{task.name} with {_shape(size, length)}", predict, columns)
        if time.monotonic() - logged >= _LOG_EVERY:
            logged = time.monotonic()
            logger.info("%s: warmed up with %d of %d shapes", task.name, number, len(calls))
    for rows in batches_of(own + padding, key_of):
        run_all(f"{task.name} with its examples", predict, columns_of(rows), sizes)
    seconds = time.monotonic() - began
    logger.info("%s: warmed up with %d shapes in %.1f s", task.name, len(calls), seconds)


def _check_examples(task: Any, policy: BatchPolicy, examples: dict[Any, list[Row]]) -> None:
    """Check that each length's example is padded to it and to no other, where that can be told."""
    name, seen = f"{task.name}.example", dict[bytes, int]()
    for length, rows in sorted(examples.items()) if policy.batch_lengths else ():
        (row,) = rows
        what, found = _length_of(task, policy, row)
        if found is not None and round_up(policy.batch_lengths, found) != length:
            raise ConfigurationError(
                f"{name}: example({length}) has a {what} of {found:g}, so the warm-up would not"
                f" prepare the length {length}"
            )
        with suppress(NotPlain):  # such as an array
            other = seen.setdefault(encode_plain(list(row), sort=True), length)
            if other != length:
                raise ConfigurationError(
                    f"{name}: example({other}) and example({length}) are equal, so the warm-up"
                    f" would not prepare both lengths"
                )


def _length_of(task: Any, policy: BatchPolicy, row: Row) -> tuple[str, float | None]:
    """Return what counts as the length of a row, and how much it is; None if that is unknown."""
    item_cost = item_cost_of(task) if policy.padded else None
    if item_cost is not None:
        try:
            return "cost", item_cost.of_call(row, {})
        except ItemTooLarge:  # it is longer than any item, and padded to the largest length
            return "cost", None
    numbers = row[0] if len(row) == 1 and isinstance(row[0], (list, tuple)) else ()
    is_flat = numbers and all(isinstance(each, (int, float)) for each in numbers)
    # The len() of a text counts letters, and the model may count words.
    return "len()", len(numbers) if is_flat else None


def _run_function(task: Any) -> Callable[..., Any]:
    def run(*columns: list[Any]) -> Any:
        with pending_answer.running_batch():
            return task._batch_stages(*columns)

    return run


def _example(task: Any, instance: Model | None, length: int) -> Row:
    """Return a row of a length."""
    own = own_attribute(task, "example")
    example = own if own is not None else instance.example  # type: ignore[union-attr]
    name = f"{task.name}.example"
    if not callable(example):
        expected = "must be a function that returns an input of a length"
        raise ConfigurationError(f"{name}: {expected}, got {example!r}")
    found = example(length)
    if found is None:
        raise ConfigurationError(f"{name}: must return an input, example({length}) returned None")
    return row_of(name, task._batch_signature, found)


def _padding_row(task: Any, instance: Model | None) -> Row:
    """Return the padding row, a value for each parameter."""
    padding = own_attribute(task, "padding_row")
    if padding is None:
        padding = instance.padding_row  # type: ignore[union-attr]
    if callable(padding):
        try:
            padding = padding()
        except Exception as error:
            words = f"{task.name}.padding_row: raised {type(error).__name__}: {error}"
            raise ConfigurationError(words) from error
    return _as_row(task, padding)


def _as_row(task: Any, padding: Any) -> Row:
    return row_of(f"{task.name}.padding_row", task._batch_signature, padding)


def _shape(size: int, length: int | None) -> str:
    return f"{size} rows" if length is None else f"{size} rows of length {length}"
