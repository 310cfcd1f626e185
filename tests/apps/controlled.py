"""
The Celery app of the tests of remote control: tasks on queues of their own, and two that share one.

The outputs name the weights of the model, or the number of rows of the call.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from celery import Celery

from celery_batch import BatchTask, Model
from tests.apps.memory import memory, recall, remember

__all__ = ["app", "memory", "recall", "remember"]

app = Celery("controlled")
app.conf.update(
    result_expires=600,
    task_default_queue="ordinary",
    task_routes={
        "controlled.sizes": "sizes",
        "controlled.weighed": "weighed",
        "controlled.gated": "gated",
        "controlled.left": "both",
        "controlled.right": "both",
    },
    broker_connection_retry_on_startup=True,
    **json.loads(os.environ.get("TESTS_CONF", "{}")),
)

#: All queues of this app, for a worker's options.
QUEUES = "ordinary,sizes,weighed,gated,both"


@app.task(base=BatchTask, name="controlled.sizes", max_batch_size=8, max_wait=1.0, linger=0.2)
def sizes(x):
    """Return the number of rows of the call."""
    return [len(x)] * len(x)


@app.task(base=BatchTask, name="controlled.gated", max_batch_size=4, max_wait=0.2, linger=0.02)
def gated(name):
    """Record the batch, and wait until the test opens the gate of its first item."""
    remember("gated", items=name)
    deadline = time.monotonic() + 60
    with memory() as client:
        while not client.exists(f"shop:open:{name[0]}") and time.monotonic() < deadline:
            time.sleep(0.02)
    return name


@app.task(base=BatchTask, name="controlled.left", max_batch_size=4, linger=0.02)
def left(x):
    """Share a queue with `right`."""
    return x


@app.task(base=BatchTask, name="controlled.right", max_batch_size=4, linger=0.02)
def right(x):
    """Share a queue with `left`."""
    return x


@app.task(name="controlled.plain")
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
        """Read the weights; "bad" ones cannot be loaded, and "exit" raises SystemExit."""
        path = Path(os.environ.get("CONTROLLED_WEIGHTS", "/nonexistent"))
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
        """Record the unload; later outputs would show it."""
        remember("unload", weights=self.weights)
        self.weights = "unloaded"


weighed = Weighed.as_task(
    app, name="controlled.weighed", max_batch_size=8, linger=0.0, max_wait=0.0
)
