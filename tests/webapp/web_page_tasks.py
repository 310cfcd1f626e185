"""A small stand-in service with batch tasks, which need no model: for the page's charts."""

from __future__ import annotations

import os
import time

from celery import Celery

from celery_batch import BatchTask
from webapp.contract import Contract
from webapp.settings import Settings

#: A service of another name has workers of its own, or none.
NAME = os.environ.get("PAGE_SERVICE", "page")

app = Celery("web_page")
app.conf.update(task_default_queue=NAME, result_expires=600)
app.conf.update(broker_connection_retry_on_startup=True, accept_content=["json", "msgpack"])


def _answer(text):
    """Give a sentence its word; one that says so is dawdled over."""
    if "slowly" in text:
        time.sleep(0.2)
    return "little" if "[MASK]" in text else ValueError(f"no [MASK] in {text!r}")


@app.task(base=BatchTask, name=f"{NAME}.answer", max_batch_size=64, max_wait=0.05)
def answer(text):
    """Answer a batch."""
    return [_answer(each) for each in text]


@app.task(base=BatchTask, name=f"{NAME}.answer_one", max_batch_size=1)
def answer_one(text):
    """Answer one at a time."""
    return [_answer(each) for each in text]


@app.task(base=BatchTask, name=f"{NAME}.colours", serializer="msgpack")
def colours(picture):
    """Answer pictures, each of which is the sky."""
    shares = [{"name": "sky blue", "share": 0.75}, {"name": "white", "share": 0.25}]
    return [shares if isinstance(each, bytes) else TypeError("no bytes") for each in picture]


def contract():
    """Return the contract of this service: ``WEBAPP_CONTRACT=web_page_tasks:contract``."""
    settings = Settings.from_environ(os.environ)
    return Contract(answer, answer_one, settings, pictured=colours)
