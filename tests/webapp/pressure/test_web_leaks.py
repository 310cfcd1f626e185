"""What a door uses stays the same, however much it has answered."""

from __future__ import annotations

import asyncio

import psutil
import pytest
from web_pressed import Clients, closed, request

from celery_batch.cli.child import wait_until

#: By how much a process may grow that has settled: bytes; threads and descriptors, since
#: pools of threads and connections grow when they are asked for more at the same time.
GROWTH, THREADS, FILES = 8 << 20, 40, 30


def footprint(quick, door):
    """Return what a door uses, and what lies in Redis beside results, which expire."""
    family = psutil.Process(door.child.pid).children(recursive=True)
    server = max(family, key=lambda process: process.memory_info().rss)
    keys = {key for key in quick.redis.scan_iter() if "-meta-" not in key}
    return server.memory_info().rss, (server.num_threads(), server.num_fds(), keys)


def shown(rss, threads, files, keys):
    """Say what a door uses."""
    return f"{rss >> 20} MiB, {threads} threads, {files} files, {len(keys)} keys"


async def visit(door, count):
    """Ask many times; every tenth client goes before it has its answer."""
    clients = Clients(door.port)
    for _ in range(count // 100):
        load = await clients.closed_loop(16, 90)
        assert {200} == set(load.counts)
        gone = [await asyncio.open_connection(port=door.port) for _ in range(10)]
        for _, writer in gone:
            writer.write(request("unwanted"))
            await closed(writer)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "count",
    [
        500,
        pytest.param(
            100_000, marks=pytest.mark.thorough("web servers under pressure at full size")
        ),
    ],
)
@pytest.mark.parametrize("kind", ["gthread", "parking", "uvicorn"])
def test_nothing_leaks(quick, kind, count, capsys):
    """After very many requests, some of them given up, a door uses no more than after some."""
    door = quick.door(kind)
    asyncio.run(visit(door, 500))  # threads, pools and caches are filled
    rss, before = footprint(quick, door)
    asyncio.run(visit(door, count))

    threads, files, keys = before

    def why_not():
        now = footprint(quick, door)[1]
        is_small = now[0] <= threads + THREADS and now[1] <= files + FILES
        return "" if is_small and now[2] <= keys else f"{before}, now {now}"

    wait_until(why_not, [door.child], what="as few threads, files and keys", timeout=60)
    after, now = footprint(quick, door)
    with capsys.disabled():
        print(f"\n{kind}: {shown(rss, *before)}; after {count}: {shown(after, *now)}")  # noqa: T201

    assert after < rss + GROWTH
