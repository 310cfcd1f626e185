"""
The worker's app under fire: one task that writes down what it runs.

It is a batch task, or, as `FAULTS_TASK` says, one with all options by which batches are chosen,
or one that is written for celery-batches.

What it writes goes to a file that no fault touches, one write for each event, so
that nothing is half written however the process ends.
"""

from __future__ import annotations

import json
import os
import time
from uuid import uuid4

from celery import Celery

from celery_batch import BatchTask
from celery_batch.batches import Batches

app = Celery("faults")
app.conf.update(json.loads(os.environ["FAULTS_CONF"]))
_SECONDS_PER_ITEM = float(os.environ["FAULTS_SECONDS_PER_ITEM"])


def _key(x, mood, load):  # noqa: ARG001 (all are an item's arguments)
    return x % 3


def _cost(x, mood, load):  # noqa: ARG001
    return 1 + x % 5


#: Everything by which batches are chosen.
_BATCH_OPTIONS = {
    "batch_by": _key,
    "cost": _cost,
    "max_batch_cost": 24,
    "padded": True,
    "dedupe": True,
    "target_latency": 0.5,
}


class BadItem(ValueError):
    """What the model says to an item it cannot bear."""


def _write(**event: object) -> None:
    ledger = os.open(os.environ["FAULTS_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(ledger, json.dumps({"at": time.monotonic(), **event}).encode() + b"\n")
    finally:
        os.close(ledger)


def double(x, mood, load):
    """
    Double each number; a bad mood among the items harms the whole batch.

    A large array that comes with a number is beside its message, and full of the number.
    """
    run = uuid4().hex
    _write(run=run, pid=os.getpid(), items=x)
    time.sleep(_SECONDS_PER_ITEM * len(x))
    if "exit" in mood:
        os._exit(9)
    _write(run=run, failed="raise" in mood)
    if "raise" in mood:
        raise BadItem(f"one of {len(x)} items is bad")
    return [
        number * 2 if array is None or (array == number).all() else "another's array"
        for number, array in zip(x, load, strict=True)
    ]


def double_requests(requests):
    """Do so for the calls of a task of celery-batches, and store each result."""
    numbers = double(*map(list, zip(*(request.args for request in requests), strict=True)))
    for request, number in zip(requests, numbers, strict=True):
        app.backend.mark_as_done(request.id, number, request=request)


def _make_task(kind):
    if kind == "requests":
        options = {"flush_every": 8, "flush_interval": 0.02, "acks_late": True}
        return app.task(base=Batches, name="faults.double", **options)(double_requests)
    options = {"max_batch_size": 8, "max_wait": 0.02}
    options |= _BATCH_OPTIONS if kind == "options" else {}
    return app.task(base=BatchTask, name="faults.double", **options)(double)


_make_task(os.environ["FAULTS_TASK"])
