"""Calls of coroutines that are sent and waited for in one go."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from celery_batch.client.publish.aio import apply_and_wait
from celery_batch.client.publish.publisher import Publisher
from celery_batch.client.results.listener import listener_for
from celery_batch.client.results.pending import PendingResults
from celery_batch.client.results.result import BatchResult
from celery_batch.protocol import write_replies
from tests.client.conftest import Sender
from tests.services.eventually import eventually

#: Seconds in which all of this is done, of which each takes milliseconds.
SOON = 20

#: Seconds in which a call is surely sent, for which a test waits.
SENT = 2.0


def prepared(sender: Sender) -> Sender:
    """Listen, and send the first of its kind, which takes Celery's path."""
    assert listener_for(sender.app) is not None
    sender.task.delay("warm")
    sender.taken()
    return sender


def answer(sender: Sender) -> str:
    """Answer the next message as a worker would, with its argument; return its task's id."""
    _, raw = sender.redis.brpop("celery", SOON)
    headers = json.loads(raw)["headers"]
    value = json.dumps({"status": "SUCCESS", "result": headers["argsrepr"], "children": []})
    for payload in write_replies([(headers["id"], value.encode())]):
        sender.redis.publish(headers["batch_reply"], payload)
    return str(headers["id"])


async def trip(sender: Sender, told: list[Any], seconds: float = 600) -> Any:
    """Make a call that has so many seconds."""
    deadline = time.monotonic() + seconds
    call = apply_and_wait(sender.task, ("a",), {}, deadline, told.append)
    return await asyncio.wait_for(call, SOON)


def test_who_asks_is_woken_with_the_answer(sender: Callable[..., Sender]) -> None:
    """The result of a call has its answer when the call returns."""
    here, told = prepared(sender()), []

    async def ask() -> Any:
        """Ask, and be answered by another thread."""
        answering = asyncio.to_thread(answer, here)
        return await asyncio.gather(trip(here, told), answering)

    result, task_id = asyncio.run(ask())

    assert (task_id, "('a',)", []) == (result.id, result.result, told)


def test_who_has_no_time_has_the_result_without_an_answer(sender: Callable[..., Sender]) -> None:
    """A call that was sent returns its result at the deadline; its answer can be waited for."""
    here, told = prepared(sender()), []

    async def ask() -> Any:
        """Give up, and wait for the answer after all."""
        result = await trip(here, told, SENT)
        assert result.pending_result.value is None
        await asyncio.to_thread(answer, here)
        return await asyncio.wait_for(result, SOON)

    assert ("('a',)", []) == (asyncio.run(ask()), told)


def test_who_goes_while_it_is_answered_has_it_revoked(sender: Callable[..., Sender]) -> None:
    """A call that is cancelled once it was sent is told of, to be revoked."""
    here, told = prepared(sender()), []

    async def ask() -> None:
        """Go when the message is there."""
        registry = PendingResults.of(here.app)
        asking = asyncio.create_task(trip(here, told))
        await asyncio.to_thread(eventually, lambda: registry.is_awaited() or 1 / 0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(ask())
    sent = [message["headers"]["id"] for message in here.taken()["celery"]]

    assert sent == [result.id for result in told]


def test_what_is_sent_too_late_has_failed_and_is_told_of(
    sender: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that takes its time fails the call; what it takes in the end can be revoked."""
    here, told = prepared(sender()), []
    send_buffer, validator = Publisher.of(here.app)._send_buffer, threading.Event()
    write = send_buffer._write

    def slowly(prepared_messages: Any) -> None:
        assert validator.wait(SOON)
        write(prepared_messages)

    monkeypatch.setattr(send_buffer, "_write", slowly)

    async def ask() -> None:
        """Ask of a broker that is slow, and let it go on."""
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            await trip(here, told, 0.1)
        assert time.monotonic() - began < SOON / 2
        validator.set()
        await asyncio.to_thread(eventually, lambda: told[0])

    asyncio.run(ask())

    assert 1 == len(told)


def test_what_has_no_time_at_all_is_not_sent(sender: Callable[..., Sender]) -> None:
    """Nothing is sent that was due before it was asked."""
    here, told = prepared(sender()), []

    async def ask() -> None:
        """Ask too late."""
        with pytest.raises(TimeoutError):
            await trip(here, told, 0.0)

    asyncio.run(ask())

    assert ({}, []) == (here.taken(), told)


def test_one_whose_sending_goes_wrong_keeps_nobody_from_being_told(
    sender: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error while one is told that it was sent is its own; others are told, now and later."""
    here, told = prepared(sender()), []
    errors = iter([LookupError("no such meter")])

    notified: Any = BatchResult.notified

    def fail_once(result: Any) -> Any:
        for error in errors:
            raise error
        return notified.fget(result)

    monkeypatch.setattr(BatchResult, "notified", property(fail_once))

    async def ask() -> list[Any]:
        """Send two in one write, and one more."""
        both = trip(here, told, SENT), trip(here, told, SENT)
        found = await asyncio.gather(*both, return_exceptions=True)
        return [*found, await trip(here, told, SENT)]

    failed, *others = asyncio.run(ask())

    assert isinstance(failed, LookupError)
    assert 3 == len(here.taken()["celery"])
    assert [None, None] == [each.pending_result.value for each in others]
