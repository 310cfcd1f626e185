"""A service under pressure: a model that takes as long as it is told, and tells what it saw."""

from __future__ import annotations

import os
import time
from contextlib import suppress

from celery import Celery
from redis.exceptions import RedisError

from celery_batch import BatchTask

app = Celery("web_pressed")
app.conf.update(task_default_queue=os.environ.get("PRESSED_QUEUE", "pressed"), result_expires=60)
app.conf.broker_connection_retry_on_startup = True

#: What the model has seen, in Redis.
SEEN = "pressed-seen"

#: An input with which the model waits until it is let go, and where it hears of that.
UNTIL_TOLD, GO = "until told", "pressed-go"

#: Items that go through the model together, and seconds that they take.
BATCH = 8
SECONDS = float(os.environ.get("PRESSED_SECONDS", "0.1"))


@app.task(base=BatchTask, name="pressed.answer", max_batch_size=BATCH)
def answer(text):
    """Return each text after a while: the longest that an item says, or the usual one."""
    with suppress(RedisError):  # a model has nothing to do with Redis; what notes its inputs has
        app.backend.client.rpush(SEEN, *text)
        if UNTIL_TOLD in text:
            app.backend.client.blpop([GO], timeout=60)
    waits = [float(each.split()[1]) for each in text if each.startswith("hold ")]
    time.sleep(max([SECONDS, *waits]))
    return text


@app.task(base=BatchTask, name="pressed.answer_one", max_batch_size=1)
def answer_one(text):
    """Return each text."""
    return text
