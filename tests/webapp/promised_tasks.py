"""Tasks whose model says what it has seen, for the tests of the web apps' promises."""

from __future__ import annotations

import time
from contextlib import suppress

from celery import Celery
from redis.exceptions import RedisError

from celery_batch import BatchTask

app = Celery("promised")  # its servers are named by the environment
app.conf.update(
    task_default_queue="promised", result_expires=60, broker_connection_retry_on_startup=True
)

#: What the model has seen, and what lets it go on, in Redis.
SEEN, GO = "promised-seen", "promised-go"

#: An input that keeps the model busy until it is let go.
HOLD = "hold"

#: Items of a batch, seconds that it takes, and so the most answers a second.
BATCH, SECONDS = 8, 0.2
CAPACITY = BATCH / SECONDS


@app.task(base=BatchTask, name="promised.answer", max_batch_size=BATCH, max_queue=2 * BATCH)
def answer(text):
    """Return each text after a while."""
    with suppress(RedisError):  # it may be away, which is nothing to a model
        app.backend.client.rpush(SEEN, *text)
        if HOLD in text:
            app.backend.client.blpop([GO], timeout=60)
    time.sleep(SECONDS)
    return text


@app.task(base=BatchTask, name="promised.quick", max_batch_size=BATCH)
def quick(text):
    """Return each text at once."""
    return text
