"""
The worker's app under fire: one batch task that writes down what it runs.

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

app = Celery("faults")
app.conf.update(json.loads(os.environ["FAULTS_CONF"]))
_SECONDS_PER_ITEM = float(os.environ["FAULTS_SECONDS_PER_ITEM"])


def _key(x, mood, load):  # noqa: ARG001 (all are an item's arguments)
    return x % 3


def _cost(x, mood, load):  # noqa: ARG001
    return 1 + x % 5


#: Everything by which batches are chosen, for half of the trials.
_BATCH_OPTIONS = {
    "batch_by": _key,
    "cost": _cost,
    "max_batch_cost": 24,
    "padded": True,
    "dedupe": True,
    "target_latency": 0.5,
}
if not int(os.environ["FAULTS_BATCH_OPTIONS"]):
    _BATCH_OPTIONS = {}


class BadItem(ValueError):
    """What the model says to an item it cannot bear."""


def _write(**event: object) -> None:
    ledger = os.open(os.environ["FAULTS_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(ledger, json.dumps({"at": time.monotonic(), **event}).encode() + b"\n")
    finally:
        os.close(ledger)


@app.task(base=BatchTask, name="faults.double", max_batch_size=8, max_wait=0.02, **_BATCH_OPTIONS)
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
