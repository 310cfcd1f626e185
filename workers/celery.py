"""
The Celery app that serves the models.

Broker and result backend come from the environment, as Celery reads it:
``CELERY_BROKER_URL`` and ``CELERY_RESULT_BACKEND``.
"""

from __future__ import annotations

from celery import Celery
from kombu.entity import Queue

app = Celery("workers", include=["workers.infill", "workers.echo", "workers.colours"])
app.conf.update(
    # Files do not stand in the way of sentences: a worker reads each queue by itself, both of
    # them unless `-Q` names one.
    task_queues=[Queue(name, routing_key=name) for name in ("celery", "pictures")],
    task_routes={"workers.colours": "pictures"},
    # Both are data and nothing else; binary is for files, which JSON would make a third larger.
    accept_content=["json", "msgpack"],
    result_expires=600,
    # Flower shows each sentence as a task, from the moment it is sent.
    worker_send_task_events=True,
    task_send_sent_event=True,
    task_track_started=False,
    broker_connection_retry_on_startup=True,
)
