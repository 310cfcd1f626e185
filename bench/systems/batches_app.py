"""celery-batches: the function gets requests, and stores each answer itself."""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery_batches import Batches

from bench.model import BATCH, MODELS

app = Celery("batches")
app.conf.update(
    result_expires=600,
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=4 * BATCH,  # less than a batch, and batches stay small
)


def _make(model: str) -> None:
    @app.task(name=f"bench.{model}", base=Batches, flush_every=BATCH, flush_interval=0.1)
    def ask(requests: list[Any]) -> None:
        answers = MODELS[model]([request.args[0] for request in requests])
        for request, answer in zip(requests, answers, strict=True):
            app.backend.mark_as_done(request.id, answer, request=request)


for name in MODELS:
    _make(name)
