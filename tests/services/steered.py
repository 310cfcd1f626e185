"""
The Celery app of the tests of steering: tasks on queues of their own, and two that share one.

What a model answers tells which weights it had, and how many rows it was called with.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from celery import Celery

from celery_batch import BatchTask, Model
from tests.services.memory import memory, recall, remember

__all__ = ["app", "memory", "recall", "remember"]

app = Celery("steered")
app.conf.update(
    result_expires=600,
    task_default_queue="ordinary",
    task_routes={
        "steered.sizes": "sizes",
        "steered.weighed": "weighed",
        "steered.gated": "gated",
        "steered.left": "both",
        "steered.right": "both",
    },
    broker_connection_retry_on_startup=True,
    **json.loads(os.environ.get("SHOP_CONF", "{}")),
)

#: Every queue of this app, as a worker is told.
QUEUES = "ordinary,sizes,weighed,gated,both"


@app.task(base=BatchTask, name="steered.sizes", max_batch_size=8, max_wait=1.0, linger=0.2)
def sizes(x):
    """Say with how many rows the function was called."""
    return [len(x)] * len(x)


@app.task(base=BatchTask, name="steered.gated", max_batch_size=4, max_wait=0.2, linger=0.02)
def gated(name):
    """Say that the batch runs, and wait until the test opens the gate of its first item."""
    remember("gated", items=name)
    deadline = time.monotonic() + 60
    with memory() as client:
        while not client.exists(f"shop:open:{name[0]}") and time.monotonic() < deadline:
            time.sleep(0.02)
    return name


@app.task(base=BatchTask, name="steered.left", max_batch_size=4, linger=0.02)
def left(x):
    """Share a queue with the one on the right."""
    return x


@app.task(base=BatchTask, name="steered.right", max_batch_size=4, linger=0.02)
def right(x):
    """Share a queue with the one on the left."""
    return x


@app.task(name="steered.plain")
def plain(x):
    """Add one, as any Celery task would."""
    return x + 1


def wait_for(path, seconds=60):
    """Wait until the test has made a file."""
    deadline = time.monotonic() + seconds
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)


class Weighed(Model):
    """Answers with the weights that it was loaded with."""

    def load(self, _device):
        """Read the weights; "bad" ones cannot be loaded, and "exit" ends whoever loads them."""
        path = Path(os.environ.get("STEERED_WEIGHTS", "/nonexistent"))
        self.weights = path.read_text() if path.exists() else "none"
        remember("load", weights=self.weights)
        if self.weights.startswith("bad"):
            raise ValueError(f"cannot read {self.weights}")
        if self.weights == "exit":
            sys.exit("no licence")
        if self.weights == "slow":
            wait_for(path.with_name("go"))

    def predict(self, batch):
        """Take a while, and name the weights."""
        time.sleep(0.01)
        return [[x, self.weights] for x in batch]

    def unload(self):
        """Say goodbye, and answer nobody from here."""
        remember("unload", weights=self.weights)
        self.weights = "unloaded"


weighed = Weighed.as_task(app, name="steered.weighed", max_batch_size=8, linger=0.0, max_wait=0.0)
