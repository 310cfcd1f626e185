"""The tests' app with signed messages: nothing unsigned, and nothing signed by strangers."""

from __future__ import annotations

import json
import os
import sys

from celery import Celery

from celery_batch import BatchTask

app = Celery("signed")
app.conf.update(
    security_key=os.environ["SIGNED_KEY"],
    security_certificate=os.environ["SIGNED_CERTIFICATE"],
    security_cert_store=os.environ["SIGNED_STORE"],
    task_serializer="auth",
    accept_content=["auth"],
    event_serializer="auth",
    result_serializer="json",
    result_accept_content=["json"],
    broker_connection_retry_on_startup=True,
)
app.setup_security()


@app.task(base=BatchTask, name="signed.double", max_batch_size=16, max_wait=0.5, linger=0.05)
def double(x):
    """Double each number."""
    return [value * 2 for value in x]


if __name__ == "__main__":  # a client: send as many tasks as told, say their ids
    print(json.dumps([double.delay(n).id for n in range(int(sys.argv[1]))]))  # noqa: T201
