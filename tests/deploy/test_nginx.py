"""Two servers behind a real nginx with the configuration we ship, one of them killed."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from collections import Counter

import httpx
import psutil
import pytest

from celery_batch.processes.managed_process import ManagedProcess, wait_until
from tests.conftest import need
from tests.services.servers.nginx import Nginx, find_nginx
from tests.services.servers.ports import quiet_port

IN_FLIGHT = 16

#: None comes twice, whichever test it is of.
_NUMBERS = itertools.count()


class Site:
    """One of the two servers."""

    def __init__(self, folder):
        """Start it."""
        self.port = quiet_port()
        self._book = folder / f"{self.port}.book"
        self._log = folder / f"{self.port}.log"
        self._hold = folder / f"{self.port}.hold"
        self.start()

    def start(self):
        """Start it, or start it again on the same port."""
        address = ["--host=127.0.0.1", f"--port={self.port}"]
        quiet = ["--log-level=warning", "--no-access-log", "--lifespan=off"]
        command = [sys.executable, "-m", "uvicorn", "tests.apps.sites.slow_site:app"]
        env = {**os.environ, "BOOK": str(self._book), "HOLD": str(self._hold)}
        self._hold.unlink(missing_ok=True)
        self._managed = ManagedProcess([*command, *address, *quiet], self._log, env=env)
        wait_until(self._why_not_ready, [self._managed], what="the server", timeout=90)

    def hold(self):
        """Answer nobody who comes from now on; return how many have come before."""
        self._hold.touch()
        return len(self.seen())

    def kill(self):
        """Kill it; return the moment at which it was gone for certain."""
        (server,) = psutil.Process(self._managed.pid).children()
        server.kill()

        assert self._managed.wait(60)
        gone = time.perf_counter()
        self._managed.stop()
        return gone

    def stop(self):
        """End it."""
        self._managed.stop()

    def seen(self):
        """Return the numbers of the requests that have reached it."""
        return [int(line) for line in self._book.read_text().split()]

    def _why_not_ready(self):
        try:
            httpx.post(f"http://127.0.0.1:{self.port}", headers={"X-Number": "-1"}, trust_env=False)
        except httpx.HTTPError as error:
            return repr(error)
        return ""


class Load:
    """Clients that post one request after another, each with a number of its own."""

    def __init__(self, port):
        """Make clients of this port."""
        self.url = f"http://127.0.0.1:{port}/predict"
        #: Number -> when it began, and its status.
        self.done = {}

    def run(self, enough):
        """Post until there is enough."""
        asyncio.run(asyncio.wait_for(self._run(enough), 60))

    async def _run(self, enough):
        limits = httpx.Limits(max_keepalive_connections=IN_FLIGHT)
        async with httpx.AsyncClient(trust_env=False, timeout=30, limits=limits) as client:
            await asyncio.gather(*(self._post(client, enough) for _ in range(IN_FLIGHT)))

    async def _post(self, client, enough):
        while not enough():
            number, began = next(_NUMBERS), time.perf_counter()
            headers = {"X-Number": str(number)}
            answer = await client.post(self.url, content=bytes(10_000), headers=headers)
            self.done[number] = (began, answer.status_code)

    def failed(self):
        """Return the numbers of those that have failed."""
        return {number for number, (_, status) in self.done.items() if status != 200}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Start two servers."""
    need(find_nginx)
    folder = tmp_path_factory.mktemp("sites")
    sites = [Site(folder), Site(folder)]
    yield sites
    for site in sites:
        site.stop()


@pytest.fixture
def nginx(pair, tmp_path):
    """Start an nginx before both, which knows nothing of their past."""
    nginx = Nginx(tmp_path, [site.port for site in pair])
    yield nginx
    nginx.child.stop()


def test_killed_server_costs_only_what_was_in_flight_on_it(pair, nginx):
    """Only requests that were on the killed server fail, and none is carried out by both."""
    doomed, other = pair
    load = Load(nginx.port)
    load.run(lambda: len(load.done) > 60)
    before = doomed.hold()
    gone = []

    def enough():
        if not gone and len(doomed.seen()) > before + 1:
            gone.append(doomed.kill())
        return gone and len(load.done) > 250

    load.run(enough)
    ways, failed = nginx.ways(), load.failed()
    held = set(doomed.seen()[before:])
    times = Counter(doomed.seen() + other.seen())
    doomed.start()

    assert held <= failed
    assert len(failed) <= IN_FLIGHT
    assert [] == [number for number in failed if load.done[number][0] >= gone[0]]
    assert {(502, str(doomed.port))} == {(ways[each][0], *ways[each][1]) for each in failed}
    assert {1} == {times[number] for number in set(load.done) - failed}
    assert 1 == max(times[number] for number in load.done)


def test_dead_server_is_passed_over_and_found_again(pair, nginx):
    """No request fails on a server that is not there; once it is back, it is asked again."""
    absent, other = pair
    absent.kill()
    load = Load(nginx.port)
    load.run(lambda: len(load.done) > 100)
    tried = [ports for _, ports in nginx.ways().values() if str(absent.port) in ports]
    absent.start()
    before = len(absent.seen())
    load.run(lambda: len(absent.seen()) > before)

    assert set() == load.failed()
    assert [[str(absent.port), str(other.port)]] * len(tried) == tried
    assert len(tried) > 0


def test_large_pictures_reach_the_servers(nginx):
    """The largest body that the servers take goes through."""
    url = f"http://127.0.0.1:{nginx.port}/predict"
    answer = httpx.post(url, content=bytes(16 << 20), headers={"X-Number": "-1"}, trust_env=False)

    assert (200, "-1") == (answer.status_code, answer.text)
