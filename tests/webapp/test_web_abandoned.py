"""Clients that hang up while their inputs are sent: on an event loop that cancels the sending."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from webapp.loop_way import LoopWay


@pytest.fixture
def revoked(monkeypatch):
    """A service whose broker is there; what is revoked is in this list."""
    ids = []
    monkeypatch.setattr("webapp.loop_way.is_listening", lambda _app: True)
    monkeypatch.setattr("webapp.loop_way.room_for", lambda *_args: nullcontext())
    monkeypatch.setattr("webapp.ways.revoke_soon", lambda _app, more: ids.extend(more))
    return ids


async def cancelled_while_sent(task, count, begun):
    """Send so many inputs, and hang up once that has begun."""
    values = [str(number) for number in range(count)]
    sending = asyncio.create_task(LoopWay().send(task, values, {}, time.monotonic() + 60))
    await begun
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending


@pytest.mark.parametrize("count", [1, 3])
def test_few_inputs_that_nobody_waits_for_are_revoked(monkeypatch, revoked, count):
    """Each is revoked that was on its way when the client hung up."""

    async def hang_up():
        """Cancel when all are on their way."""
        begun, left = asyncio.Event(), [*range(count)]

        async def apply_async(_task, args, _kwargs, _options, *, on_abandoned):
            """Be cancelled, and sent nevertheless."""
            left.pop()
            if not left:
                begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                on_abandoned(SimpleNamespace(id=args[0], app=None))

        monkeypatch.setattr("webapp.loop_way.apply_async", apply_async)
        await cancelled_while_sent(Mock(), count, begun.wait())

    asyncio.run(hang_up())

    assert [str(number) for number in range(count)] == sorted(revoked)


def test_many_inputs_that_nobody_waits_for_are_revoked(revoked):
    """A write that a thread has begun goes on, and what it has sent is revoked."""
    begun, gate = threading.Event(), threading.Event()

    def apply_many(rows):
        """Send, once that is allowed."""
        begun.set()
        assert gate.wait(20)
        return [SimpleNamespace(id=args[0], app=None) for args, _ in rows]

    async def hang_up():
        """Cancel once the thread has begun, and let it end."""
        task = Mock(apply_many=apply_many)
        await cancelled_while_sent(task, 20, asyncio.to_thread(begun.wait, 20))
        gate.set()
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
        await asyncio.sleep(0)  # for what is called then

    asyncio.run(hang_up())

    assert {str(number) for number in range(20)} == set(revoked)
