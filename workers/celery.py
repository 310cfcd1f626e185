"""
The Celery app that serves the models.

Broker and result backend come from the environment, as Celery reads it:
``CELERY_BROKER_URL`` and ``CELERY_RESULT_BACKEND``.
"""

from __future__ import annotations

from celery import Celery

app = Celery("workers", include=["workers.infill", "workers.echo"])
app.conf.update(
    result_expires=600,
    # Flower shows each sentence as a task, from the moment it is sent.
    worker_send_task_events=True,
    task_send_sent_event=True,
    task_track_started=False,
    broker_connection_retry_on_startup=True,
)
