"""Calls of coroutines that are sent and waited for in one go."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from celery_batch.client.publish.aio import Limits, RoundTrip
from celery_batch.client.publish.publisher import Publisher
from celery_batch.client.results.listener import listener_for
from celery_batch.protocol import write_replies
from tests.client.conftest import Sender
from tests.services.eventually import eventually

#: Seconds in which all of this is done, of which each takes milliseconds.
SOON = 20


def prepared(sender: Sender) -> Sender:
    """Listen, and send the first of its kind, which goes Celery's own road."""
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


async def trip(sender: Sender, told: list[Any], *, sent_by: float = 600, until: float = 600) -> Any:
    """Make a call that has so many seconds."""
    now = time.monotonic()
    call = RoundTrip(Limits(now + sent_by, now + until), lambda: None)
    return await asyncio.wait_for(call.make(sender.task, ("a",), {}, told.append), SOON)


def test_who_asks_is_woken_with_the_answer(sender: Callable[..., Sender]) -> None:
    """The result of a call has its answer when the call returns."""
    here, told = prepared(sender()), []

    async def ask() -> Any:
        """Ask, and be answered by another thread."""
        answering = asyncio.to_thread(answer, here)
        return await asyncio.gather(trip(here, told), answering)

    result, task_id = asyncio.run(ask())

    assert (task_id, "('a',)", []) == (result.id, result.result, told)


@pytest.mark.parametrize("until", [0.0, 0.1])
def test_who_has_no_time_has_the_result_without_an_answer(
    sender: Callable[..., Sender], until: float
) -> None:
    """However short the time to wait is, the call is sent, and its answer can be waited for."""
    here, told = prepared(sender()), []

    async def ask() -> Any:
        """Give up, and wait for the answer after all."""
        result = await trip(here, told, until=until)
        assert result.reply.value is None
        await asyncio.to_thread(answer, here)
        return await asyncio.wait_for(result, SOON)

    assert ("('a',)", []) == (asyncio.run(ask()), told)


def test_who_goes_while_it_is_answered_has_it_revoked(sender: Callable[..., Sender]) -> None:
    """A call that is cancelled once it was sent is told of, to be revoked."""
    here, told = prepared(sender()), []

    async def ask() -> None:
        """Go when the message is there."""
        now = time.monotonic()
        call = RoundTrip(Limits(now + 600, now + 600), lambda: None)
        asking = asyncio.create_task(call.make(here.task, ("a",), {}, told.append))
        await asyncio.to_thread(eventually, lambda: call.result.id)
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
            await trip(here, told, sent_by=0.1, until=0.05)
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
            await trip(here, told, sent_by=0.0, until=0.0)

    asyncio.run(ask())

    assert ({}, []) == (here.taken(), told)


def test_a_timer_that_is_early_costs_nobody_a_wait(
    sender: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sent just after the timer, and before the time it was set for, is not waited for."""
    here, told = prepared(sender()), []
    stopped = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr("celery_batch.client.publish.aio.time", stopped)

    async def ask() -> Any:
        """Have the timer go off when by the clock no time has passed."""
        call = RoundTrip(Limits(600.0, 1e-9), lambda: None)
        return await asyncio.wait_for(call.make(here.task, ("a",), {}, told.append), SOON)

    assert asyncio.run(ask()).reply.value is None


def test_one_whose_sending_goes_wrong_keeps_nobody_from_being_told(
    sender: Callable[..., Sender],
) -> None:
    """An error while one is told that it was sent is its own; others are told, now and later."""
    here, told = prepared(sender()), []

    def fail() -> None:
        raise LookupError("no such meter")

    async def ask() -> list[Any]:
        """Send two in one write, and one more."""
        limits = Limits(time.monotonic() + 600, time.monotonic() + 600)
        bad = RoundTrip(limits, fail).make(here.task, ("bad",), {}, told.append)
        found = await asyncio.gather(bad, trip(here, told, until=0.05), return_exceptions=True)
        return [*found, await trip(here, told, until=0.05)]

    failed, *others = asyncio.run(ask())

    assert isinstance(failed, LookupError)
    assert 3 == len(here.taken()["celery"])
    assert [None, None] == [each.reply.value for each in others]
