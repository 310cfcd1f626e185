"""What the web apps promise: too much work, clients that go, servers that break."""

from __future__ import annotations

import asyncio
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from celery_batch.processes.redis_server import find_redis_server
from tests.conftest import need
from tests.webapp.promised import Load, Server, Setup, quick_request, request
from tests.webapp.promised_tasks import BATCH, CAPACITY, SECONDS, SEEN

#: FastAPI in each run, the other servers in the thorough one.
THOROUGH = pytest.mark.thorough("the web apps' promises on all servers and at full size")
OTHERS = [pytest.param(kind, marks=THOROUGH) for kind in ("flask", "flask-gevent", "django")]
each_server = pytest.mark.parametrize("kind", ["fastapi", *OTHERS])

#: What a request may be answered with while servers break.
CLEAR = {200, 429, 503, 504}

#: Seconds beyond its deadline in which a request is answered, on a busy machine.
SLACK = 6.0

#: By how much a process may grow that has settled: bytes; threads and descriptors, since pools
#: of threads and connections grow when more are asked at the same time.
GROWTH, THREADS, FILES = 8 << 20, 40, 30


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    """The servers of all tests here."""
    need(find_redis_server)
    folder = Path(tempfile.mkdtemp(prefix="web-"))  # pytest's own may be too long for a socket
    setup = Setup(folder, tmp_path_factory.mktemp("logs"))
    yield setup
    setup.close()
    shutil.rmtree(folder)


def has(setup: Setup, **numbers: int) -> bool:
    """Return whether the worker has so many batches running, and so many calls waiting."""
    return numbers.items() <= setup.ask("batch_status")["promised.answer"].items()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seconds", [4.0, pytest.param(30.0, marks=THOROUGH)])
@each_server
def test_goodput_at_ten_times_the_load(
    setup: Setup, kind: str, seconds: float, capsys: pytest.CaptureFixture[str]
):
    """What is too much is refused at once, and the model's work goes into answers."""
    server = setup.server(kind)
    setup.worker  # noqa: B018 (starts it)
    messages = [request(f"item {n}") for n in range(int(seconds * CAPACITY))]
    server.in_turn(2 * BATCH, messages[: 2 * BATCH])  # connections and threads are there
    alone = server.in_turn(2 * BATCH, messages)
    # A few seconds beside other tests show a collapse; the full time shows what is promised.
    share, most = (0.9, SECONDS) if seconds >= 30 else (0.5, math.inf)
    for _ in range(3):  # what stands still for a moment loses much of a few seconds
        setup.client.delete(SEEN)
        load = asyncio.run(server.steady(10 * CAPACITY, seconds))
        say(capsys, f"{kind} alone: {alone}", f"{kind} at ten times the load: {load}")
        assert {200, 429} == set(load.counts)
        assert load.is_helpful
        assert load.counts[200] == len(setup.seen())
        if load.goodput > share * alone.goodput:
            break

    assert {200} == set(alone.counts)
    assert load.goodput > share * alone.goodput
    assert load.median(429) < most


def say(capsys: pytest.CaptureFixture[str], *lines: str) -> None:
    """Print what was measured."""
    with capsys.disabled():
        print("", *lines, sep="\n")  # noqa: T201


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("count", [500, pytest.param(100_000, marks=THOROUGH)])
@each_server
def test_nothing_grows(setup: Setup, kind: str, count: int, capsys: pytest.CaptureFixture[str]):
    """After very many requests, some of them abandoned, a web process uses what it did before."""
    server = setup.server(kind)
    setup.worker  # noqa: B018 (starts it)
    visit(server, 1_000)  # caches and pools are full
    before = footprint(setup, server)
    load = visit(server, count)

    def settled() -> bool:
        now = footprint(setup, server)
        return now.threads <= before.threads + THREADS and (
            now.files <= before.files + FILES and now.keys <= before.keys
        )

    setup.until(settled, "as few threads, files and keys as before", server.child)
    after = footprint(setup, server)
    say(capsys, f"{kind}: {load}", f"before: {before}", f"after {count}: {after}")

    assert {200} == set(load.counts)
    assert after.memory < before.memory + GROWTH


def visit(server: Server, count: int) -> Load:
    """Make so many requests, and after each hundred ten whose clients disconnect at once."""
    loads = []
    for _ in range(count // 100):
        loads.append(server.in_turn(2 * BATCH, [quick_request("a text")] * 100))
        for _ in range(10):
            with server.gone(quick_request("gone")):
                pass
    answers = [answer for load in loads for answer in load.answers]
    return Load(answers, sum(load.seconds for load in loads))


class Footprint(NamedTuple):
    """What a web process uses, and the keys in Redis beside results, which expire."""

    memory: int
    threads: int
    files: int
    keys: frozenset[str]

    def __str__(self) -> str:
        mib = self.memory / (1 << 20)
        return f"{mib:.1f} MiB, {self.threads} threads, {self.files} files, {len(self.keys)} keys"


def footprint(setup: Setup, server: Server) -> Footprint:
    """Return what a server uses now."""
    family = psutil.Process(server.child.pid).children(recursive=True)
    process = max(family, key=lambda each: each.memory_info().rss)
    keys = frozenset(key for key in setup.client.scan_iter() if "-meta-" not in key)
    return Footprint(process.memory_info().rss, process.num_threads(), process.num_fds(), keys)


@each_server
def test_a_killed_worker(setup: Setup, kind: str, capsys: pytest.CaptureFixture[str]):
    """While a worker is killed under load and another starts, all are answered in time."""
    server = setup.server(kind)
    setup.worker  # noqa: B018 (starts it)

    def kill() -> None:
        setup.kill_worker()
        setup.worker  # noqa: B018 (starts another)

    load = under_load(server, kill)
    say(capsys, f"{kind}, worker killed: {load}")
    check(load)

    setup.until(lambda: server.predict("afterwards").status == 200, "an answer", setup.worker)


@each_server
def test_a_restart_of_redis(setup: Setup, kind: str, capsys: pytest.CaptureFixture[str]):
    """While Redis restarts under load all are answered in time, and then it goes on by itself."""
    server, worker = setup.server(kind), setup.worker

    def restart() -> None:
        setup.redis.stop()
        setup.redis.start()

    load = under_load(server, restart)
    say(capsys, f"{kind}, Redis restarted: {load}")
    check(load)
    setup.until(lambda: server.predict("again", timeout=2.0).status == 200, "an answer", worker)

    assert {200} == set(server.in_turn(2, [request("well")] * 8).counts)


def under_load(server: Server, fault: Callable[[], None]) -> Load:
    """Ask at half of what the model can do, and have something break after a second."""

    async def both() -> Load:
        """Keep asking while the fault strikes."""
        asking = asyncio.ensure_future(server.steady(CAPACITY / 2, 5.0, deadline=4.0))
        await asyncio.sleep(1.0)
        await asyncio.to_thread(fault)
        return await asking

    return asyncio.run(both())


def check(load: Load) -> None:
    """Assert that all were answered clearly and in time, and some with outputs."""
    assert load.counts.keys() <= CLEAR
    assert load.counts[200]
    assert load.is_helpful
    assert load.slowest < 4.0 + SLACK
