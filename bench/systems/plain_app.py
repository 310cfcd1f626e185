"""Plain Celery, settled as its users settle it: a task for each item."""

from __future__ import annotations

from celery import Celery

from bench.models.reference import MODELS

app = Celery("plain")
app.conf.update(result_expires=600, broker_connection_retry_on_startup=True)


def _make(model: str) -> None:
    @app.task(name=f"bench.{model}")
    def ask(item: int) -> int:
        return MODELS[model]([item])[0]


for name in MODELS:
    _make(name)
