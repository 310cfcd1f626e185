"""A batch task that needs no model at all, to see that messages flow."""

from __future__ import annotations

from typing import Any

from celery_batch import BatchTask
from workers.celery import app

__all__ = ["echo"]


@app.task(base=BatchTask, name="workers.echo")
def echo(item: list[Any]) -> list[Any]:
    """Give every item back."""
    return item
