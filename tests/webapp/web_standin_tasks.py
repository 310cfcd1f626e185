"""A small stand-in service: stock Celery tasks that answer, fail and dawdle on request."""

from __future__ import annotations

import os
import time

from celery import Celery
from celery.worker.control import inspect_command

app = Celery("web_standin")
app.conf.update(task_default_queue="standin", result_expires=600)
app.conf.broker_connection_retry_on_startup = True


def _answer(text: str) -> str:
    """Do what the text says; an ordinary one gets its second word back."""
    verb, *words = text.split()
    if verb == "sleep":
        time.sleep(float(words[0]))
    if verb == "crash":
        message = "/srv/private/weights.bin is broken"
        raise RuntimeError(message)
    if "[MASK]" not in text:
        message = f"no [MASK] in {text!r}"
        raise ValueError(message)
    return words[0]


@app.task(name="standin.answer")
def answer(text):
    """Stand in for the batched task."""
    return _answer(text)


@app.task(name="standin.answer_one")
def answer_one(text):
    """Stand in for the task with batches of one."""
    return _answer(text)


@inspect_command(name="batch_status")
def batch_status(_state):
    """Say which models are warm, as a worker with batch tasks does."""
    warm = not os.environ.get("STANDIN_COLD")
    return {task.name: {"warm": warm} for task in (answer, answer_one)}
