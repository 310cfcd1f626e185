"""An app whose tasks only hand back what they were given, in whatever form it came."""

from __future__ import annotations

from celery_batch import BatchTask
from tests.apps.small_app import remember, small_app

app = small_app("serial")


@app.task(base=BatchTask, name="serial.echo", max_batch_size=32, max_wait=1.0, linger=0.3)
def echo(x):
    """Hand back each item, and remember how many came together."""
    remember("sizes", len(x))
    return [ValueError(one) if one == "bad" else one for one in x]
