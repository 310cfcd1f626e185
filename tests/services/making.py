"""Batch functions, and tasks made of them as the decorator does."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_batch import BatchTask, ConfigurationError


def double(x):
    """Double each number."""
    return [value * 2 for value in x]


def join(left, right="!", *, sep="-"):
    """Take several parameters, one with a default and one by keyword only."""
    return [f"{a}{s}{b}" for a, b, s in zip(left, right, sep, strict=True)]


def make(app: Celery, function: Any = double, **options: Any) -> Any:
    """Make a batch task of a function, as the decorator does on first use."""
    task = app.task(**{"base": BatchTask, **options})(function)
    app.finalize()
    return task


def refusal(make_it: Any) -> str:
    """Return what a task that cannot be made is told."""
    with pytest.raises(ConfigurationError) as refused:
        make_it()
    return str(refused.value)
