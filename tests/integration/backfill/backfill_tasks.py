"""Tasks for backfills."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from celery import Celery
from celery.exceptions import Ignore, Reject

from celery_batch import BatchTask

app = Celery("backfill_tasks")


@app.task(base=BatchTask, max_batch_size=16, max_wait=0.01)
def double(number):
    """Double numbers; those that end in 13 are bad."""
    return [ValueError(f"bad {n}") if n % 100 == 13 else 2 * n for n in number]


@app.task(base=BatchTask, max_batch_size=16, max_wait=0.01)
def echo(value):
    """Say the same."""
    return value


@app.task(base=BatchTask, max_batch_size=16, max_wait=0.01)
def scaled(vector):
    """Double vectors; those that begin with 13 are bad, and with 14 there is one number more."""
    return [_scaled(each) for each in vector]


def _scaled(vector):
    if vector[0] == BAD:
        return ValueError("bad vector")
    if vector[0] != LONG:
        return 2 * vector
    import numpy as np  # noqa: PLC0415 (each command of the tests would import it)

    return np.append(vector, vector[:1])


BAD, LONG = 13, 14


@app.task(base=BatchTask, max_batch_size=16, max_wait=0.01)
def scaled_slowly(vector):
    """Double vectors, and take a while."""
    time.sleep(0.1)
    return [2 * each for each in vector]


@app.task(base=BatchTask, max_batch_size=16, max_wait=0.01)
def named(vector):
    """Return dicts of arrays."""
    return [{"double": 2 * each, "sum": float(each.sum())} for each in vector]


@app.task(base=BatchTask, max_batch_size=16, isolate_failures=False, max_worker_losses=1)
def fragile(number):
    """Double numbers; one of them takes the process down."""
    if 5 in number:
        os.kill(os.getpid(), signal.SIGKILL)
    return [2 * n for n in number]


@app.task(base=BatchTask)
def join(left, right, sep="-"):
    """Take two parameters and an option."""
    return [f"{a}{s}{b}" for a, b, s in zip(left, right, sep, strict=True)]


@app.task(base=BatchTask)
def length(file):
    """Say how many bytes there are."""
    return [len(each) for each in file]


@app.task(base=BatchTask, max_batch_size=2, max_wait=0)
def slow(number):
    """Take a while."""
    time.sleep(0.8)
    return [2 * n for n in number]


@app.task(base=BatchTask, max_batch_size=16, max_wait=0)
def leisurely(number):
    """Take long for many."""
    time.sleep(0.1)
    return [2 * n for n in number]


@app.task(base=BatchTask, max_batch_size=16, max_wait=0)
def counted(number):
    """Take a while, and write down what was asked."""
    time.sleep(0.01)
    with open(os.environ["COMPUTED"], "a", encoding="ascii") as file:  # noqa: PTH123 (appends at once)
        file.write("".join(f"{n}\n" for n in number))
    return [2 * n for n in number]


@app.task(base=BatchTask, max_batch_size=4, max_wait=0)
def held_up(number):
    """Wait with the first number until there is a file."""
    while 0 in number and not Path(os.environ["RELEASED"]).exists():
        time.sleep(0.01)
    return [2 * n for n in number]


@app.task(base=BatchTask, max_batch_size=16, max_queue=20)
def narrow(number):
    """Have a queue that is soon full."""
    return [2 * n for n in number]


@app.task(base=BatchTask, max_batch_size=16, ignore_result=True)
def silent(number):
    """Store no result, unless a call asks for it."""
    return [2 * n for n in number]


@app.task
def plain(number):
    """Be no batch task."""
    return number


@app.task(base=BatchTask, max_batch_size=16, max_wait=0)
def refusing(number):
    """Ignore odd numbers, reject those of four, and double the others."""
    return [Ignore(f"is {n}") if n % 2 else Reject(f"is {n}") if n == 4 else 2 * n for n in number]


class Unanswered(BatchTask):
    """Ends without a result before the model is called."""

    abstract = True

    def before_start(self, *_):
        """Let Celery store nothing."""
        raise Ignore


@app.task(base=Unanswered, max_batch_size=16, max_wait=0)
def unanswered(number):
    """Never be called."""
    return number
