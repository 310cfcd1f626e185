"""An app whose tasks get lists of requests, as those of celery-batches do."""

from __future__ import annotations

import json
import os
import signal
import threading
import time

from celery import Celery, signals
from celery.exceptions import Ignore, Reject
from celery.worker.request import Request

from celery_batch.batches import Batches
from tests.apps.memory import memory, recall, remember

__all__ = ["app", "memory", "recall", "remember"]

app = Celery("requests_app")
app.conf.update(
    task_default_queue=os.environ.get("TESTS_QUEUE", "celery"),
    broker_connection_retry_on_startup=True,
    worker_send_task_events=True,
    **json.loads(os.environ.get("TESTS_CONF", "{}")),
)

FOUR = {"base": Batches, "flush_every": 4, "flush_interval": 0.5}


@app.task(name="r.total", **FOUR)
def total(requests):
    """Store the sum of all arguments for each request; the first argument of none may be 13."""
    remember("total", items=[[*each.args, *each.kwargs.values()] for each in requests])
    found = sum(sum(each.args) + sum(each.kwargs.values()) for each in requests)
    for request in requests:
        if request.args[:1] == (13,) or request.args[:1] == [13]:
            raise ValueError("no 13")
        app.backend.mark_as_done(request.id, found, request=request)
    return found


@app.task(name="r.late", acks_late=True, **FOUR)
def late(requests):
    """As `total`, but the first batch with a 9 kills its process."""
    remember("late", items=[each.args[0] for each in requests])
    with memory() as client:
        if any(each.args[0] == 9 for each in requests) and client.setnx("killed", "1"):
            os.kill(os.getpid(), signal.SIGKILL)
    for request in requests:
        app.backend.mark_as_done(request.id, request.args[0], request=request)


@app.task(name="r.again", **FOUR)
def again(requests):
    """Send each request with an even argument once more, under its own id, and raise."""
    for request in requests:
        (number,) = request.args
        if number % 2:
            app.backend.mark_as_done(request.id, number, request=request)
        else:
            again.apply_async((number + 1,), task_id=request.id)
    if any(request.args[0] % 2 == 0 for request in requests):
        raise RuntimeError("some were even")


@app.task(name="r.slow", soft_time_limit=4, **FOUR)
def slow(requests):
    """Run longer than it may."""
    app.backend.mark_as_done(requests[0].id, "first", request=requests[0])
    time.sleep(20)


@app.task(name="r.facts", **FOUR)
def facts(requests):
    """Store what each request knows of itself."""
    for each in requests:
        known = {
            "name": each.name,
            "args": list(each.args),
            "kwargs": each.kwargs,
            "hostname": each.hostname,
            "routing_key": each.delivery_info["routing_key"],
            "task": each.request_dict["task"],
            "ignore_result": each.ignore_result,
            "current": app.current_task.name,
        }
        app.backend.mark_as_done(each.id, known, request=each)


@app.task(base=Batches, name="r.many", flush_every=500, flush_interval=20)
def many(requests):
    """Store how many requests the batch has."""
    for each in requests:
        app.backend.mark_as_done(each.id, len(requests), request=each)


class Odd(Exception):
    """An error that no pickle brings back."""

    def __init__(self, one, two):
        super().__init__(f"{one} {two}")


@app.task(name="r.odd", **FOUR)
def odd(requests):
    """Raise what cannot be pickled, or be read again."""
    if requests[0].args[0] == "unread":
        raise Odd(1, 2)
    error = RuntimeError("with a lock")
    error.lock = threading.Lock()
    raise error


@app.task(name="r.marks", **FOUR)
def marks(requests):
    """Mark a failure for one request, a success for the others, on a thread of its own; raise."""

    def mark():
        for each in requests:
            if each.args[0] == 1:
                app.backend.mark_as_failure(each.id, KeyError("one"), request=each)
            else:
                app.backend.mark_as_done(each.id, each.args[0], request=each)

    thread = threading.Thread(target=mark)
    thread.start()
    thread.join()
    raise RuntimeError("after all")


@app.task(name="r.rejects", acks_late=True, **FOUR)
def rejects(requests):
    """Reject the messages of all requests, or ignore them."""
    remember("rejects", items=[each.args[0] for each in requests])
    raise Reject("unwanted") if requests[0].args[0] == "reject" else Ignore


@app.task(name="r.ignored", ignore_result=True, **FOUR)
def ignored(requests):
    """Raise for calls that want no results."""
    remember("ignored", items=[each.args[0] for each in requests])
    raise RuntimeError("unheard")


@app.task(name="r.note_error")
def note_error(task_id):
    """Note that a call has failed."""
    remember("errback", id=task_id)


@app.task(name="r.silent", **FOUR)
def silent(requests):
    """Store nothing."""
    remember("silent", items=[each.args[0] for each in requests])


class NotingRequest(Request):
    """Celery's, which notes when it is acknowledged."""

    def acknowledge(self):
        """Note it."""
        remember("ack", id=self.id)
        super().acknowledge()


def _watch(requests):
    deadline = time.monotonic() + 20
    while True:  # the main process acknowledges while this runs, or afterwards
        known = sorted(each["id"] for each in recall("ack"))
        if app.current_task.acks_late or len(known) == len(requests) or time.monotonic() > deadline:
            break
    for each in requests:
        app.backend.mark_as_done(each.id, known, request=each)


NOTING = {"base": Batches, "flush_every": 4, "flush_interval": 5, "Request": NotingRequest}
watched = app.task(name="r.watched", **NOTING)(_watch)
watched_late = app.task(name="r.watched_late", acks_late=True, **NOTING)(_watch)


@app.task(name="r.collect")
def collect(values):
    """Return the sum of a chord's values."""
    return sum(values)


def _note(kind):
    def receiver(sender=None, **about):
        name = getattr(sender, "name", None) or about["request"].name
        if name.startswith("r.") and name not in {"r.collect", "r.note_error"}:
            remember(kind, name=name)

    return receiver


_RECEIVERS = [
    (getattr(signals, f"task_{kind}"), _note(kind))
    for kind in ("received", "prerun", "postrun", "success", "failure")
]
for _signal, _receiver in _RECEIVERS:
    _signal.connect(_receiver, weak=False)
