"""Acknowledgements in bulk on a real Redis, which the event loop does not wait for."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from celery.utils.functional import noop
from kombu import Connection
from kombu.asynchronous import Hub
from redis import Redis

from celery_batch.processes.managed_process import wait_until
from celery_batch.processes.redis_server import RedisServer
from celery_batch.worker.redis.acks import RedisAcks
from celery_batch.worker.redis.owner import Keys


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A Redis that a test may stop."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def setup(server: RedisServer, hub: Hub) -> Iterator[Any]:
    """The acknowledgements of a connection that holds four messages, and a client."""
    unsent: list[str] = []
    with Connection(server.url) as connection:
        channel = connection.default_channel
        keys = Keys.of(channel).of_owner("us")
        acks = RedisAcks(
            channel,
            SimpleNamespace(hub=hub, pool=None),
            SimpleNamespace(is_open=True),
            SimpleNamespace(keys=keys, end=noop),
            unsent,
            SimpleNamespace(discard=noop),
        )
        with Redis(unix_socket_path=f"{server.directory}/redis.sock") as client:
            client.hset(keys.unacked, mapping=dict.fromkeys("abcd", "message"))
            hub.call_repeatedly(0.05, noop)  # a pass without events ends soon
            yield SimpleNamespace(
                acks=acks, client=client, keys=keys, hub=hub, unsent=unsent, channel=channel
            )


def held(setup: Any) -> set[str]:
    """Return the tags of the messages that are not acknowledged."""
    return {tag.decode() for tag in setup.client.hkeys(setup.keys.unacked)}


def run_until(setup: Any, why_not: Callable[[], str]) -> None:
    """Run the event loop until a condition holds."""

    def run() -> str:
        setup.hub.run_once()
        return why_not()

    wait_until(run, [], what="acknowledgements", timeout=60.0)


def held_at_last(setup: Any, count: int) -> set[str]:
    """Run the event loop until no more messages than these are left, and return their tags."""
    run_until(setup, lambda: "" if len(held(setup)) <= count else f"{held(setup)}")
    return held(setup)


def acknowledge_first(setup: Any) -> None:
    """Acknowledge one message, so that there is a connection."""
    setup.acks.ack("a")
    assert set("bcd") == held_at_last(setup, 3)
    run_until(setup, lambda: "a reply to come" if setup.hub.readers else "")


@contextmanager
def stopped(setup: Any) -> Iterator[None]:
    """Stop Redis for as long as the context lasts."""
    process = psutil.Process(setup.client.info("server")["process_id"])
    process.suspend()
    try:
        yield
    finally:
        process.resume()


def test_the_event_loop_goes_on_while_redis_does_not_answer(setup: Any):
    """What is acknowledged meanwhile is sent after the reply."""
    acknowledge_first(setup)
    with stopped(setup):
        setup.acks.ack("b")
        setup.hub.run_once()
        setup.acks.ack("c")
        setup.hub.run_once()
    assert set("d") == held_at_last(setup, 1)


def test_what_a_lost_connection_had_is_sent_again(setup: Any):
    """Redis may not have taken it, and takes it twice without harm."""
    acknowledge_first(setup)
    with stopped(setup):
        setup.acks.ack("b")
        setup.hub.run_once()
        for connection in setup.acks._client.connection_pool._in_use_connections:
            connection._sock.shutdown(socket.SHUT_RDWR)
    assert set("cd") == held_at_last(setup, 2)


def test_a_reply_that_does_not_come_in_time_is_waited_for_no_longer(setup: Any):
    """The connection may be dead though nobody has closed it; `socket_timeout` says how long."""
    acknowledge_first(setup)
    pool = setup.acks._client.connection_pool
    for connection in pool._available_connections:
        connection.socket_timeout = 0.2
    with stopped(setup):
        setup.acks.ack("b")
        setup.hub.run_once()
        (connection,) = pool._in_use_connections
    lost = connection._sock.recv(64)
    run_until(setup, lambda: "" if not setup.unsent else f"{setup.unsent} is not sent")

    assert lost
    assert {"c", "d"} == held(setup)
    assert not pool._in_use_connections


def test_a_redis_that_forgets_scripts_gets_them_again(setup: Any):
    """An operator may flush them at any time."""
    acknowledge_first(setup)
    setup.client.script_flush()
    setup.acks.ack("b")
    assert set("cd") == held_at_last(setup, 2)


def test_a_script_that_may_not_be_loaded_is_a_refusal(setup: Any, caplog: pytest.LogCaptureFixture):
    """The worker does not end by that."""
    acknowledge_first(setup)
    setup.client.script_flush()
    setup.client.execute_command("ACL", "SETUSER", "default", "-script")
    setup.acks.ack("b")
    run_until(setup, lambda: "" if caplog.messages else "not refused")
    setup.client.execute_command("ACL", "SETUSER", "default", "+script")
    assert set("cd") == held_at_last(setup, 2)

    assert "Redis refuses acknowledgements" in caplog.text


def test_a_refusal_is_logged_once_and_sent_again(setup: Any, caplog: pytest.LogCaptureFixture):
    """What comes meanwhile waits until then."""
    acknowledge_first(setup)
    setup.client.execute_command("ACL", "SETUSER", "default", "-evalsha")
    setup.acks.ack("b")
    run_until(setup, lambda: "" if caplog.messages else "not refused")
    setup.acks.ack("c")
    setup.hub.run_once()
    setup.client.execute_command("ACL", "SETUSER", "default", "+evalsha")
    assert set("d") == held_at_last(setup, 1)

    (message,) = caplog.messages
    assert "Redis refuses acknowledgements" in message


def test_flush_waits_for_all(setup: Any):
    """At the end of a connection nothing is on its way."""
    acknowledge_first(setup)
    setup.acks.ack("b")
    setup.hub.run_once()
    setup.acks.ack("c")
    setup.acks.flush()

    assert {"d"} == held(setup)
    assert not setup.hub.readers


def test_the_end_of_a_connection_keeps_what_redis_may_not_have_taken(setup: Any):
    """The next connection sends it again."""
    acknowledge_first(setup)
    with stopped(setup):
        setup.acks.ack("b")
        setup.hub.run_once()
        setup.acks.end()

    assert ["b"] == setup.unsent
    assert not setup.hub.readers


def test_a_channel_may_close_before_a_reply_has_come(setup: Any):
    """Kombu closes the connections first: the messages are put back all the same."""
    ended: list[str] = []
    setup.acks._lease.end = lambda: ended.append("lease")
    acknowledge_first(setup)
    with stopped(setup):
        setup.acks.ack("b")
        setup.hub.run_once()
    setup.channel.close()

    assert ({"c", "d"}, [], ["lease"]) == (held(setup), setup.unsent, ended)
