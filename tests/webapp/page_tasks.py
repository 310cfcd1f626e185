"""Batch tasks for the page, which need no model."""

from __future__ import annotations

from celery import Celery

from celery_batch import BatchTask

app = Celery("page_tasks")
app.conf.update(accept_content=["json", "msgpack"], broker_connection_retry_on_startup=True)


def _answer(text):
    if text == "refused":
        return ValueError("this input is refused")
    return {"length": len(text), "words": text.split()} if " " in text else text.upper()


@app.task(base=BatchTask, name="page.answer", max_batch_size=64, max_wait=0.05)
def answer(text):
    """Return a word in capitals, and a sentence's length and words."""
    return [_answer(each) for each in text]


@app.task(base=BatchTask, name="page.answer_one", max_batch_size=1)
def answer_one(text):
    """Do the same for one text at a time."""
    return [_answer(each) for each in text]


@app.task(base=BatchTask, name="page.size", serializer="msgpack")
def size(file):
    """Return the number of bytes of a file."""
    return [f"{len(each)} bytes" for each in file]
