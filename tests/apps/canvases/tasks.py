"""
Tasks for canvases of any shape, each as a batch task and as an ordinary one.

What goes in, in which order, is part of what comes out, so an input that was lost,
doubled or swapped on the way shows in the end.
"""

from __future__ import annotations

from celery_batch import BatchTask
from tests.apps.canvases.digests import Broken, digest
from tests.apps.small_app import remember, small_app

app = small_app("canvas")
BATCH = {"base": BatchTask, "max_batch_size": 8, "max_wait": 0.02}


@app.task(name="canvas.plain")
def plain(x=None, *, tag):
    """Digest one value."""
    remember("ran", tag)
    return digest(x, tag)


@app.task(name="canvas.batch", **BATCH)
def batch(x=None, *, tag):
    """Digest a batch of values."""
    remember("ran", *tag)
    return [digest(one, mark) for one, mark in zip(x, tag, strict=True)]


@app.task(name="canvas.plain_broken")
def plain_broken(x=None, *, tag):  # noqa: ARG001 (what came before is sent to every task)
    """Fail."""
    remember("ran", tag)
    raise Broken(tag)


@app.task(name="canvas.batch_broken", **BATCH)
def batch_broken(x=None, *, tag):  # noqa: ARG001 (what came before is sent to every task)
    """Fail each item by itself."""
    remember("ran", *tag)
    return [Broken(mark) for mark in tag]


@app.task(name="canvas.noted", **BATCH)
def noted(x, *, tag):
    """Note a result that was linked here."""
    remember("noted", *zip(tag, x, strict=True))
    return x


@app.task(name="canvas.mourned")
def mourned(*_, tag):
    """Note an error that was linked here."""
    remember("mourned", tag)
