"""The same program with its import line changed."""

from __future__ import annotations

from bench.systems.requests_app import make_app
from celery_batch.batches import Batches

app = make_app(Batches)
