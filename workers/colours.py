"""Pictures: the file of one in, the names of its main colours out."""

from __future__ import annotations

from workers.celery import app
from workers.models.colours import MainColours

__all__ = ["colours"]

colours = MainColours.as_task(
    app,
    name="workers.colours",
    # Packed, the bytes of a file stay bytes: JSON would have them in base64, which the
    # broker's transport then puts into base64 once more.
    serializer="msgpack",
    # A worker holds three batches of files that may have 10 MB each.
    max_batch_size=8,
    max_wait=0.01,
)
