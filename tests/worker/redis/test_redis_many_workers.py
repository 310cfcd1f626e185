"""What a fleet of many workers costs its Redis for leases and for the search for the dead."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import pytest
from kombu import Connection
from redis import Redis

from celery_batch.processes.redis_server import RedisServer
from celery_batch.worker.redis.lease import Lease
from tests.services.setup import emptied

HELD = 20

#: What is counted: so many seconds of the workers' clock, in which each renews once a second.
SECONDS = 4


class Clock:
    """The time by which the workers of a simulated fleet renew, and where the current one is."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.machine = ""


class OneBeat:
    """In the place of a lease's stop event: lets its thread's loop go round once."""

    def __init__(self) -> None:
        self._has_waited = False

    def wait(self, _seconds: float) -> bool:
        """Return False the first time, and True the next."""
        before, self._has_waited = self._has_waited, not self._has_waited
        return before

    def is_set(self) -> bool:
        """Return False: it is not to end."""
        return False


class Fleet:
    """
    Workers' leases on one Redis, whose threads a test runs by hand.

    Args:
        channel: Kombu's Redis channel.
        clock: Of all of them.
        machines: How many there are; the workers are spread evenly.
    """

    def __init__(self, channel: Any, clock: Clock, workers: int, machines: int) -> None:
        self._clock = clock
        self.leases: list[tuple[str, Lease]] = []
        for number in range(workers):
            clock.machine = f"machine-{number % machines}"
            lease = Lease(channel, f"w{number}@host", 15.0)
            lease._thread = Thread(target=lambda: None)  # its loop is run here
            lease.open()
            lease._stopped = OneBeat()
            self.leases.append((clock.machine, lease))

    def hold(self, client: Redis, messages: int) -> None:
        """Have each worker hold so many messages."""
        pipe = client.pipeline(transaction=False)
        for number, (_, lease) in enumerate(self.leases):
            tags = [f"{number:08}-0000-0000-0000-{n:012}" for n in range(messages)]
            pipe.hset(lease.keys.held, mapping=dict.fromkeys(tags, "0"))
            pipe.zadd(lease.keys.index, dict.fromkeys(tags, 1.0))
        pipe.execute()

    def live(self, seconds: int) -> None:
        """Have each worker renew once a second, for so many seconds of their clock."""
        for _ in range(seconds):
            self._clock.now += 1.0
            for machine, lease in self.leases:
                self._clock.machine = machine
                lease._run()

    def end(self) -> None:
        """Let go of the connections."""
        for _, lease in self.leases:
            lease.client.connection_pool.disconnect()


class Cost(NamedTuple):
    """What clients have asked for, and most commands that one of their scripts ran."""

    requests: int
    most_in_script: int


def cost_of(socket_path: Path, work: Callable[[], object]) -> Cost:
    """Return what is asked of a Redis during some work, as its MONITOR tells."""
    said = bytearray()
    with socket.socket(socket.AF_UNIX) as monitor, Redis(unix_socket_path=str(socket_path)) as own:
        monitor.connect(str(socket_path))
        monitor.sendall(b"MONITOR\r\n")
        reader = Thread(target=lambda: _read_until_end(monitor, said))
        reader.start()
        work()
        own.echo("the end of the count")
        reader.join(60)
    requests = most = inside = 0
    for line in said.splitlines():
        if b"the end of the count" in line:
            break
        if b" lua] " in line:
            inside += 1
            most = max(most, inside)
        elif b'"EVALSHA"' in line or b" unix:" in line:
            requests, inside = requests + 1, 0
    return Cost(requests, most)


def _read_until_end(monitor: socket.socket, said: bytearray) -> None:
    while b"the end of the count" not in said[-4096:]:
        said += monitor.recv(1 << 20)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of all workers in this process, each of which is on the machine it says."""
    clock = Clock()
    for module in ("redis.owner", "redis.lease"):
        for name, replaced in (
            ("boottime", lambda: clock.now),
            ("machine", lambda: clock.machine),
        ):
            monkeypatch.setattr(f"celery_batch.worker.{module}.{name}", replaced, raising=False)
    return clock


@pytest.fixture
def channel(redis_server: RedisServer) -> Iterator[Any]:
    """A channel of an empty Redis."""
    with Connection(emptied(redis_server)) as connection:
        yield connection.default_channel


_THOROUGH = pytest.mark.thorough("a thousand workers, on as many machines")


@pytest.mark.parametrize(
    ("workers", "machines"),
    [
        (200, 20),
        pytest.param(1000, 100, marks=_THOROUGH),
        pytest.param(1000, 1000, marks=_THOROUGH),
    ],
)
def test_many_workers_cost_little(
    redis_server: RedisServer,
    channel: Any,
    clock: Clock,
    workers: int,
    machines: int,
    record_property: Callable[[str, object], None],
):
    """At most two requests a second of each, in short scripts; a container counts as a machine."""
    path = redis_server.directory / "redis.sock"
    fleet = Fleet(channel, clock, workers, machines)
    with Redis(unix_socket_path=str(path)) as client:
        fleet.hold(client, HELD)
        fleet.live(5)  # the workers of each machine are known
        client.config_set("slowlog-log-slower-than", 1000)
        client.slowlog_reset()
        client.config_resetstat()
        fleet.live(SECONDS)
        scripts = client.info("commandstats")["cmdstat_evalsha"]
        slow = [entry["duration"] for entry in client.slowlog_get(128)]
        client.config_set("slowlog-log-slower-than", 10_000)
    cost = cost_of(path, lambda: fleet.live(SECONDS))
    fleet.end()
    figures = {
        "requests a second": cost.requests / SECONDS,
        "most commands in a script": cost.most_in_script,
        "microseconds of a script": scripts["usec_per_call"],
        "scripts over 1 ms": slow,
    }
    record_property("figures", figures)

    assert cost.requests / SECONDS <= 2 * workers
    assert cost.most_in_script <= 200
