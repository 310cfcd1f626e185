"""What a model has returned is kept apart from memory that it may fill again."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from celery_batch.runtime.outputs import owned
from celery_batch.runtime.runner import BatchRun, Runner
from celery_batch.runtime.stages import Stages


class Scored(NamedTuple):
    """An output with a name for each value."""

    score: float
    vector: Any


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_values_stay_what_they_are(library: str):
    """Arrays are copied wherever they are, and the classes of what holds them stay."""
    buffer: Any = np.ones((2, 3)) if library == "numpy" else torch.ones(2, 3)
    first, second = buffer
    outputs = [
        buffer, [*buffer], (first, second), {"a": first, "b": 1}, [{"a": [0, first]}],
        [None, first], ("label", second), Scored(0.5, first), OrderedDict(a=1, b=second),
    ]  # fmt: skip
    found = owned(outputs)
    texts = list(map(repr, outputs))
    buffer[:] = 2

    assert texts == list(map(repr, found))
    assert list(map(type, outputs)) == list(map(type, found))


def test_values_without_arrays_are_not_copied():
    """Numbers and texts cost nothing."""
    for value in ([1.0] * 3, ("a", None), {"a": 1}, OrderedDict(a=b""), "text", ValueError()):
        assert value is owned(value)


def test_output_that_is_uncollated_while_the_next_call_runs():
    """A model may have one buffer for what `predict` returns."""
    buffer = np.zeros(2)

    def predict(batch: list[float]) -> Any:
        buffer[:] = batch
        return {"rows": buffer}

    stages = Stages(predict, None, lambda output: [float(each) for each in output["rows"]])
    runner = Runner(stages, "refill")
    run, later = BatchRun(runner, [[1.0, 2.0]]), BatchRun(runner, [[3.0, 4.0]])
    run.call(uncollate=False)
    later.call(uncollate=False)
    run.uncollate()

    assert [1.0, 2.0] == run.outputs
