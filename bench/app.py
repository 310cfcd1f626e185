"""The Celery app under test; the worker is the stock one."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery

from bench.model import cost
from celery_batch import BatchTask

app = Celery("bench")
app.conf.update(
    result_expires=600,
    broker_connection_retry_on_startup=True,
    batch_overlap=bool(os.environ.get("BENCH_OVERLAP", "1")),
)


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


@app.task(base=BatchTask, name="bench.timed", max_batch_size=64, max_wait=0.1, queue="timed")
def timed(item: list[int]) -> list[int]:
    """Run the reference model, and note when it began and ended."""
    began = time.monotonic()
    outputs = cost(item)
    ended = time.monotonic()
    with open(os.environ["BENCH_TIMES"], "a", encoding="ascii") as times:  # noqa: PTH123 (quick)
        times.write(f"{began} {ended} {len(item)}\n")
    return outputs
