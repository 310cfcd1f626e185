"""The worker side of the example service: ``celery -A workers worker --concurrency=1``."""

from __future__ import annotations

from workers.celery import app

__all__ = ["app"]
