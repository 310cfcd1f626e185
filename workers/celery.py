"""
The Celery app that serves the models: ``celery -A workers worker --concurrency=1``.

Broker and result backend come from the environment, as Celery reads it:
``CELERY_BROKER_URL`` and ``CELERY_RESULT_BACKEND``.
"""

from __future__ import annotations

import os

from celery import Celery

modules = ["workers.infill", "workers.colours", "workers.echo"]
if os.environ.get("HF_MODEL"):
    modules.append("workers.huggingface")

app = Celery("workers", include=modules)
app.conf.update(
    # Both are data and nothing else; msgpack is for files, which JSON makes a third larger.
    accept_content=["json", "msgpack"],
    result_expires=600,
    # Flower shows each item as a task, from the moment it is sent.
    worker_send_task_events=True,
    task_send_sent_event=True,
    broker_connection_retry_on_startup=True,
)
