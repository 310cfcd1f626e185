"""Text infilling: one ``[MASK]`` in, one word out."""

from __future__ import annotations

from workers.celery import app
from workers.models.infilling import TextInfilling

__all__ = ["infill", "infill_one"]

infill = TextInfilling.as_task(app, name="workers.infill", max_batch_size=64, max_wait=0.01)

#: The same model, asked one sentence at a time: what batching is compared with.
infill_one = TextInfilling.as_task(app, name="workers.infill_one", max_batch_size=1)
