"""The Celery app under test; the worker is the stock one."""

from __future__ import annotations

from typing import Any

from celery import Celery

from bench.model import cost
from celery_batch import BatchTask

app = Celery("bench")
app.conf.update(result_expires=600, broker_connection_retry_on_startup=True)


@app.task(base=BatchTask, name="bench.echo", max_batch_size=64, max_wait=0.1)
def echo(item: list[Any]) -> list[Any]:
    """Cost nothing: what is measured is the way there and back."""
    return item


@app.task(base=BatchTask, name="bench.batched", max_batch_size=64, max_wait=0.1)
def batched(item: list[int]) -> list[int]:
    """Run the reference model in batches."""
    return cost(item)


@app.task(base=BatchTask, name="bench.naive", max_batch_size=1)
def naive(item: list[int]) -> list[int]:
    """Run the reference model one item at a time."""
    return cost(item)
