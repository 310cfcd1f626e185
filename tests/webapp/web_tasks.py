"""The batch tasks behind the web apps' tests: they answer, refuse and fail as they are asked."""

from __future__ import annotations

import numpy as np
from celery import Celery

from celery_batch import BatchTask

app = Celery("web_tasks")
app.conf.update(
    task_default_queue="web_tasks",
    accept_content=["json", "msgpack"],
    result_expires=600,
    broker_connection_retry_on_startup=True,
)

#: Where Redis keeps the texts that the model has seen.
SEEN = "web-tasks-seen"


def _upper(text):
    if text == "crash":
        return RuntimeError("/srv/private/weights.bin is broken")
    if not isinstance(text, str) or text.startswith("bad"):
        return ValueError(f"{text!r} is no good text")
    if text == "vector":
        return np.array([1, np.nan], "f4")
    return text.upper()


@app.task(base=BatchTask, name="web.upper", max_batch_size=8, max_wait=0.005, max_queue=6)
def upper(text):
    """Return each text in capitals."""
    app.backend.client.rpush(SEEN, *map(str, text))
    return [_upper(each) for each in text]


@app.task(base=BatchTask, name="web.upper_one", max_batch_size=1)
def upper_one(text):
    """Do the same one by one."""
    return [_upper(each) for each in text]


@app.task(base=BatchTask, name="web.length", max_batch_size=4, serializer="msgpack")
def length(image):
    """Return each file's length."""
    return [len(each) for each in image]
