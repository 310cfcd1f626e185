"""A small stand-in service: batch tasks that answer, fail and dawdle on request."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery
from celery.worker.control import inspect_command

from celery_batch import BatchTask
from webapp.picture import kind_of

app = Celery("web_standin")
app.conf.update(task_default_queue=os.environ.get("STANDIN_QUEUE", "standin"), result_expires=600)
app.conf.broker_connection_retry_on_startup = True
app.conf.accept_content = ["json", "msgpack"]

#: Where Redis keeps what was noted.
NOTES = "standin-notes"


def _answer(text: str) -> Any:
    """Do what the text says; an ordinary one gets its second word back."""
    verb, *words = text.split()
    if verb == "sleep":
        time.sleep(float(words[0]))
    if verb == "note":
        app.backend.client.rpush(NOTES, words[0])
    if verb == "crash":
        return RuntimeError("/srv/private/weights.bin is broken")
    if "[MASK]" not in text:
        return ValueError(f"no [MASK] in {text!r}")
    return words[0]


@app.task(base=BatchTask, name="standin.answer", max_batch_size=32)
def answer(text):
    """Answer all at once."""
    return [_answer(each) for each in text]


@app.task(base=BatchTask, name="standin.answer_one", max_batch_size=1)
def answer_one(text):
    """Answer one by one."""
    return [_answer(each) for each in text]


@app.task(base=BatchTask, name="standin.look", max_batch_size=4, serializer="msgpack")
def look(picture):
    """Say what files of pictures look like from outside."""
    return [
        ValueError("that one not") if each.endswith(b"refuse me") else [kind_of(each), len(each)]
        for each in picture
    ]


if os.environ.get("STANDIN_COLD"):

    @inspect_command(name="batch_status")
    def batch_status(_state):
        """Say that no model is warm."""
        return {task.name: {"warm": False} for task in (answer, answer_one)}
