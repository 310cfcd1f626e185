"""Tasks that get lists of requests: the same for celery-batches and for ours."""

from __future__ import annotations

from typing import Any

from celery import Celery

from bench.models.reference import BATCH, MODELS

__all__ = ["make_app"]


def make_app(base: Any) -> Celery:
    """Return an app with a task for each model; its function stores each answer itself."""
    app = Celery("batches")
    app.conf.update(
        result_expires=600,
        broker_connection_retry_on_startup=True,
        worker_prefetch_multiplier=4 * BATCH,  # less than a batch, and theirs stay small
    )
    for model in MODELS:
        _add_task(app, base, model)
    return app


def _add_task(app: Celery, base: Any, model: str) -> None:
    @app.task(name=f"bench.{model}", base=base, flush_every=BATCH, flush_interval=0.1)
    def ask(requests: list[Any]) -> None:
        answers = MODELS[model]([request.args[0] for request in requests])
        for request, answer in zip(requests, answers, strict=True):
            app.backend.mark_as_done(request.id, answer, request=request)
