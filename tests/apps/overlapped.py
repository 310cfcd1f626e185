"""An app whose models and hooks wait for each other, to test their order."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from billiard.exceptions import SoftTimeLimitExceeded

from celery_batch import BatchTask
from tests.apps.small_app import at, remember, small_app, where

app = small_app("overlapped")


class Watched(BatchTask):
    """Waits in its hooks and its model for the places that its argument names."""

    def before_start(self, _task_id: str, args: Any, _kwargs: Any) -> None:
        """Record the start of an item."""
        name, waits = args[0]
        at(f"{name} entered")
        if waits.get("exits"):
            sys.exit(3)

    def on_success(self, _retval: Any, _task_id: str, args: Any, _kwargs: Any) -> None:
        """Record the end of an item."""
        name, waits = args[0]
        met = at(f"{name} finishing", *waits.get("finishing", ()))
        remember("finished", [name, met, where()])


@app.task(base=Watched, name="overlapped.watched", max_batch_size=2, max_wait=5.0, linger=0.5)
def watched(item):
    """Run, and wait for what the first item names."""
    name, waits = item[0]
    try:
        met = at(f"{name} running", *waits.get("running", ()))
    except SoftTimeLimitExceeded:
        at(f"{name} interrupted")
        raise
    time.sleep(waits.get("seconds", 0.0))
    remember("ran", [name, met, where(), os.getpid()])
    if waits.get("kills"):
        os.kill(os.getpid(), signal.SIGKILL)
    return [each[0] for each in item]


@app.task(base=Watched, name="overlapped.other", max_batch_size=2)
def other(item):
    """Be another task that runs as the first does."""
    return watched._batch_run(item)


@app.task(base=BatchTask, name="overlapped.closing", max_batch_size=1)
def closing(item):
    """Close what the process has open, its pipe to the pool among it."""
    os.closerange(3, 4096)
    return item


@app.task(name="overlapped.plain")
def plain(name):
    """Run as an ordinary task, which nothing of ours goes on beside."""
    remember("finished", [name, True, "plain"])
    return name
