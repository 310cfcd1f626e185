"""Deadlines for what a thread or a coroutine waits for at a broker."""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
import time
from collections.abc import Callable, Iterator

import amqp
import pytest
from redis.connection import Connection
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_batch.compat.deadline import current_deadline, waiting_until


def test_coroutines_have_deadlines_of_their_own():
    """Those that end in any order leave none to the others, or to their thread."""
    seen: list[float] = []

    async def wait(seconds: float, end: asyncio.Event, ended: asyncio.Event) -> None:
        """Look which deadline there is, before and after another coroutine has ended."""
        deadline = time.monotonic() + seconds
        with waiting_until(deadline):
            seen.append(current_deadline() - deadline)
            await end.wait()
            seen.append(current_deadline() - deadline)
        seen.append(current_deadline())
        ended.set()

    async def overlap() -> None:
        """Begin one and another, and end them in the same order."""
        begin, first, second = asyncio.Event(), asyncio.Event(), asyncio.Event()
        both = [wait(1.0, begin, first), wait(2.0, first, second)]
        running = [asyncio.ensure_future(each) for each in both]
        await asyncio.sleep(0)
        begin.set()
        await asyncio.gather(*running)
        seen.append(current_deadline())

    asyncio.run(overlap())

    assert [0.0, 0.0, 0.0, math.inf, 0.0, math.inf, math.inf] == seen


def _plain(host: str, port: int) -> None:
    amqp.Connection(f"{host}:{port}").connect()


def _secured(host: str, port: int) -> None:
    options = {"cert_reqs": ssl.CERT_NONE}
    amqp.Connection(f"{host}:{port}", ssl=options).connect()


def _redis(host: str, port: int) -> None:
    Connection(host=host, port=port).connect()


@pytest.fixture
def silent() -> Iterator[tuple[str, int]]:
    """A server that accepts connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()


@pytest.mark.parametrize("connect", [_plain, _secured, _redis], ids=["amqp", "TLS", "Redis"])
def test_silent_server_is_given_up(
    silent: tuple[str, int], connect: Callable[[str, int], None]
) -> None:
    """No greeting is waited for after the deadline."""
    began = time.monotonic()
    with waiting_until(began + 0.2), pytest.raises((TimeoutError, RedisTimeoutError)):
        connect(*silent)

    assert time.monotonic() - began < 20.0
