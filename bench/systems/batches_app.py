"""celery-batches: the function gets requests, and stores each answer itself."""

from __future__ import annotations

from celery_batches import Batches

from bench.systems.requests_app import make_app

app = make_app(Batches)
