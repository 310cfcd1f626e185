"""How many requests a client may send, alone and together with other processes."""

from __future__ import annotations

import os
import signal

import pytest
import redis

from celery_batch.cli.redis_server import RedisServer
from celery_batch.errors import ConfigurationError
from webapp import rates as rates_module
from webapp.rates import Allowance, Rates


class Clock:
    """A clock that a test sets."""

    now = 600.0

    def __call__(self):
        """Return the time."""
        return self.now


@pytest.fixture
def store():
    """A Redis, and its URL as a store."""
    with RedisServer() as server:
        yield server, f"redis+unix://{server.directory}/redis.sock"


def test_each_client_is_counted_by_itself():
    """A client over its rate does not touch the others."""
    rates = Rates("2/minute", "", Clock())
    over = [rates.count(client).is_over for client in "aaabaab"]

    assert [False, False, True, False, True, True, False] == over


def test_the_next_stretch_begins_anew():
    """What is left, and until when, is told as the clock has it."""
    clock = Clock()
    rates = Rates("2 per 5 seconds", "", clock)
    clock.now = 604.2
    first = rates.count("a")
    clock.now = 605.0

    assert Allowance(limit=2, stretch=5, used=1, reset=1) == first
    assert Allowance(limit=2, stretch=5, used=1, reset=5) == rates.count("a")


def test_what_is_left_goes_into_headers():
    """The headers are those of the draft, and never below nothing."""
    said = [Allowance(2, 60, used, 7).headers()["RateLimit"] for used in (1, 2, 3)]

    assert [f'"requests";r={left};t=7' for left in (1, 0, 0)] == said
    assert '"requests";q=2;w=60' == Allowance(2, 60, 1, 7).headers()["RateLimit-Policy"]


def test_a_flood_of_addresses_fills_no_memory(monkeypatch):
    """Beyond so many clients in one stretch the newcomers are counted together."""
    monkeypatch.setattr(rates_module, "_MOST_CLIENTS", 3)
    rates = Rates("2/day", "memory://", Clock())
    over = [rates.count(client).is_over for client in "abcdefa"]

    assert [False, False, False, False, False, True, False] == over


def test_processes_count_together(store):
    """With a store, a client's rate holds for all who ask the same one."""
    _, url = store
    one, other = Rates("3/minute", url, Clock()), Rates("3/minute", url, Clock())
    used = [rates.count("a").used for rates in (one, other, one, other)]

    assert [1, 2, 3, 4] == used
    assert not one.is_quick


@pytest.mark.parametrize("away", ["down", "hanging"])
def test_a_store_that_is_away_is_done_without(store, away, caplog):
    """Each process counts for itself then, at once, and says so in the log."""
    server, url = store
    rates = Rates("3/minute", url, Clock())
    rates.count("a")
    process = redis.Redis(unix_socket_path=f"{server.directory}/redis.sock").info()["process_id"]
    if away == "down":
        server.stop()
    else:
        os.kill(process, signal.SIGSTOP)
    try:
        used = [rates.count("a").used for _ in range(3)]
    finally:
        if away == "hanging":
            os.kill(process, signal.SIGCONT)

    assert [1, 2, 3] == used
    assert rates.is_quick
    assert 1 == caplog.text.count("the store of rates is away")


@pytest.mark.parametrize("rate", ["fast", "0/second", "10", "10/fortnight", "1/second;5/minute"])
def test_a_wrong_rate_stops_the_start(rate):
    """A rate that cannot be read is no rate."""
    with pytest.raises(ConfigurationError, match="WEBAPP_RATE: must be such as 100/second"):
        Rates(rate, "")


@pytest.mark.parametrize("store", ["memcached://x", "async+redis://x", "nonsense"])
def test_a_wrong_store_stops_the_start(store):
    """A store that is not offered is named, without the password it may hold."""
    with pytest.raises(ConfigurationError, match="WEBAPP_RATE_STORE: must be"):
        Rates("1/second", store)
