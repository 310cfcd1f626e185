"""A client that names its reply channel is notified there of every end of its tasks."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from celery import chord

from celery_batch.protocol import FACTS_ID, REPLY_CHANNEL, REPLY_HEADER, STARTED_ID, read_replies
from tests.conftest import Setup
from tests.services.shared_setup import eventually

CHANNEL = f"{REPLY_CHANNEL}of-this-test"

HEADERS = {"headers": {REPLY_HEADER: CHANNEL}}


@contextmanager
def listening(setup: Setup) -> Iterator[Any]:
    """Be subscribed to the client's channel."""
    with setup.memory() as client, client.pubsub() as subscription:
        subscription.subscribe(CHANNEL)
        assert subscription.get_message(timeout=60)["type"] == "subscribe"
        yield subscription


def replies_of(subscription: Any, number: int) -> dict[str, dict[str, Any]]:
    """Return what is said of so many tasks, by their ids; nothing else is said later."""
    answers: dict[str, dict[str, Any]] = {}
    deadline = time.monotonic() + 60
    while len(answers) < number and time.monotonic() < deadline:
        message = subscription.get_message(timeout=1)
        for task_id, value in read_replies(message["data"]) if message else ():
            if task_id == FACTS_ID or task_id.startswith(STARTED_ID):
                continue
            meta = json.loads(value)
            assert meta["status"] == answers.setdefault(task_id, meta)["status"]
    return answers


def ask(task: Any, *args: Any, **options: Any) -> str:
    """Send a task that names the channel; return its id."""
    return task.apply_async(args, **{**HEADERS, **options}).id


def test_every_end_is_notified(each_setup: Setup):
    """Answers, errors, retries, refusals and chords: each is notified as it is stored."""
    setup = each_setup
    setup.worker("-c", "1")
    body = chord([setup.double.s(n).set(**HEADERS) for n in range(3)], setup.total.s())
    with listening(setup) as subscription:
        wanted = {
            ask(setup.odd, "fine"): "SUCCESS",
            ask(setup.odd, "bad"): "FAILURE",
            ask(setup.odd, "unserialisable"): "FAILURE",
            ask(setup.flaky, "again"): "SUCCESS",
            ask(setup.double, 1, serializer="pickle"): "FAILURE",
            ask(setup.timed, 20): "FAILURE",
        }
        wanted |= {part.id: "SUCCESS" for part in body.apply_async().parent}
        answers = replies_of(subscription, len(wanted))
    with setup.memory() as client:
        stored = {name: client.get(f"celery-task-meta-{name}") for name in wanted}

    assert wanted == {name: meta["status"] for name, meta in answers.items()}
    assert answers == {name: json.loads(value) for name, value in stored.items()}


def test_ends_that_no_process_lived_to_store_are_notified(setup: Setup):
    """A killed process, a time limit, a revoke, an expiry: these ends are notified as well."""
    worker = setup.worker("-c", "1")
    with listening(setup) as subscription:
        setup.doze.delay()  # what comes now waits
        eventually(lambda: setup.recall("doze"), "a process that is busy")
        unwanted = ask(setup.double, 1)
        setup.app.control.revoke([unwanted], reply=True, timeout=60, destination=[worker.name])
        setup.module.remember("wake")
        poison = ask(setup.deadly, "exit")
        slow = ask(setup.sluggish, 20, time_limit=1.0)
        busy = ask(setup.sluggish, 3)
        running = ask(setup.sluggish, 2)
        setup.app.control.revoke(
            [running], terminate=True, reply=True, timeout=60, destination=[worker.name]
        )
        late = ask(setup.double, 1, expires=datetime(2020, 1, 1, tzinfo=UTC))
        answers = replies_of(subscription, 6)

    assert {
        poison: "FAILURE",
        slow: "FAILURE",
        busy: "SUCCESS",
        unwanted: "REVOKED",
        running: "REVOKED",
        late: "REVOKED",
    } == {name: meta["status"] for name, meta in answers.items()}
    assert "PoisonItem" == answers[poison]["result"]["exc_type"]
