"""Web apps while a server behind them hangs: its real process is stopped, and goes on later."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple
from uuid import uuid4

import httpx
import psutil
import pytest
from web_site import Site, environ, running

from celery_batch.processes.managed_process import wait_until
from celery_batch.processes.redis_server import RedisServer, find_redis_server
from tests.conftest import need
from tests.services.forked import start
from tests.services.servers.ports import quiet_port
from tests.services.servers.rabbitmq import RabbitMQServer
from tests.services.setup import CELERY

#: Seconds that a client waits, and further ones for an answer on a busy machine.
DEADLINE, SLACK = 2.0, 6.0

#: Seconds within which `prepare` has a revoke given up, which takes two connections: for each
#: two tries of a second to connect and two for an answer.
PREPARED = 12.0

OK = 200

#: Times that all clients ask while a server hangs: at first nothing has failed yet.
ROUNDS = 3

#: What is asked at once: no more than fits into an empty queue.
INPUTS = (["a"], ["b", "c"])
FORMS = 6


class Stack(NamedTuple):
    """A server that is to hang, and the environment of the apps that depend on it."""

    server: RedisServer | RabbitMQServer
    environ: dict[str, str]


Open = Callable[[str, str], tuple[Site, Stack]]


@pytest.fixture(scope="module")
def open_hanging(
    rabbitmq_server: RabbitMQServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Open]:
    """Start an app of some kind, and the worker of its broker, once for all tests here."""
    need(find_redis_server)
    logs = tmp_path_factory.mktemp("hangs")
    sites: dict[Any, Site] = {}
    workers: set[str] = set()
    with ExitStack() as running_here, RedisServer(port=quiet_port()) as redis:
        stacks = {
            "redis": Stack(redis, environ(redis.url)),
            "rabbitmq": Stack(rabbitmq_server, environ(rabbitmq_server.url, redis.url)),
            "backend": Stack(redis, environ(rabbitmq_server.url, redis.url)),
        }

        def open_hanging(kind: str, hangs: str) -> tuple[Site, Stack]:
            stack = stacks[hangs]
            broker = stack.environ["CELERY_BROKER_URL"]
            if broker not in workers:
                line = [CELERY, "-A", "web_tasks", "worker", "--pool=threads", "-c4", "-n", "hangs"]
                log = logs / f"worker-{hangs}.log"
                running_here.enter_context(start([*line, "-l", "INFO"], log, env=stack.environ))
                workers.add(broker)
            if (kind, broker) not in sites:
                site = running(kind, logs / f"{kind}-{hangs}.log", stack.environ)
                sites[kind, broker] = running_here.enter_context(site)
            return sites[kind, broker], stack

        yield open_hanging


_SERVERS = ("redis", "rabbitmq", "backend")

#: Flask and Django ask with the same function, which tests/web tries on each server that hangs;
#: FastAPI with another.
_ALIKE = pytest.mark.thorough("what hangs behind web apps that ask alike")


@pytest.mark.parametrize(
    ("kind", "hangs"),
    [
        *(("fastapi", hangs) for hangs in _SERVERS),
        ("flask", "redis"),
        *(pytest.param("flask", hangs, marks=_ALIKE) for hangs in _SERVERS[1:]),
        *(
            pytest.param(kind, hangs, marks=_ALIKE)
            for kind in ("django", "flask-gevent", "django-asgi")
            for hangs in _SERVERS
        ),
    ],
)
def test_a_server_that_hangs(
    kind: str, hangs: str, open_hanging: Open, capsys: pytest.CaptureFixture[str]
):
    """All are answered in time while a server hangs, and the same process serves afterwards."""
    site, stack = open_hanging(kind, hangs)
    site.until("/readyz")
    await_answers(site)  # the first ones may take longer than a request has
    processes = family(site)
    with stopped(stack.server):
        answers = [ask_all(site) for _ in range(ROUNDS)]
        others = ask_others(site)
        is_alive = site.get("/healthz").status_code == OK
    said = [f"{statuses(each)} in {slowest(each):.2f} s" for each in [*answers, others]]
    with capsys.disabled():
        print(f"\n{kind}, {hangs} hangs: {'; '.join(said)}")  # noqa: T201
    await_answers(site)

    assert is_alive
    assert family(site) == processes
    for each in answers:
        # 429 where the queue was not measured since the requests before.
        assert statuses(each) <= {429, 503, 504}
        assert all("Retry-After" in response.headers for _, response in each)
        assert slowest(each) < DEADLINE + SLACK
    assert statuses(others) <= {OK, 202, 503}
    assert 503 in statuses(others)
    assert slowest(others) < PREPARED + SLACK


Answer = tuple[float, httpx.Response]


def await_answers(site: Site) -> None:
    """Return when all requests with a deadline are answered in time."""

    def why_not() -> str:
        found = statuses(ask_all(site))
        return "" if found == {OK} else f"{found}"

    wait_until(why_not, [site.child], what="answers", timeout=60)


def ask_all(site: Site) -> list[Answer]:
    """Send all requests that have a deadline at once; return the answers."""
    header = {"X-Timeout": str(DEADLINE)}
    calls = [
        *(request("POST", site, "/predict", headers=header, json={"inputs": x}) for x in INPUTS),
        *[request("POST", site, "/naive", headers=header, data={"s": "text"})] * FORMS,
    ]
    return together(calls)


def ask_others(site: Site) -> list[Answer]:
    """Send requests that have no deadline."""
    call = f"/tasks/{uuid4()}"
    return together(
        [
            request("GET", site, "/readyz"),
            request("POST", site, "/tasks", json={"input": "text"}),
            request("GET", site, call),
            request("DELETE", site, call),
        ]
    )


def request(method: str, site: Site, path: str, **options: Any) -> Callable[[], httpx.Response]:
    """Return a call that sends a request, on a connection that no server closes for idleness."""
    # To read what it verifies TLS with, which is not used here, takes as long as the request.
    return partial(httpx.request, method, f"{site.url}{path}", timeout=60, verify=False, **options)


def together(calls: list[Callable[[], httpx.Response]]) -> list[Answer]:
    """Make calls at once; return the answers, and the seconds until each."""

    def timed(call: Callable[[], httpx.Response]) -> Answer:
        """Make one call."""
        began = time.monotonic()
        response = call()
        return time.monotonic() - began, response

    with ThreadPoolExecutor(len(calls)) as clients:
        return list(clients.map(timed, calls))


def statuses(answers: list[Answer]) -> set[int]:
    """Return the statuses of some answers."""
    return {response.status_code for _, response in answers}


def slowest(answers: list[Answer]) -> float:
    """Return the seconds until the last of some answers."""
    return max((seconds for seconds, _ in answers), default=0.0)


def family(site: Site) -> set[int]:
    """Return the ids of a web server's processes."""
    return {each.pid for each in psutil.Process(site.child.pid).children(recursive=True)}


@contextmanager
def stopped(server: RedisServer | RabbitMQServer) -> Iterator[None]:
    """Have a server's process stand still, its sockets open."""
    processes = psutil.Process(server.child.pid).children()
    for each in processes:
        each.suspend()
    try:
        wait_until(partial(why_running, processes), [], what="a stop", timeout=60)
        yield
        assert not why_running(processes)
    finally:
        for each in processes:
            each.resume()


def why_running(processes: list[psutil.Process]) -> str:
    """Return how processes fare that are not stopped."""
    states = {each.status() for each in processes}
    return "" if states == {psutil.STATUS_STOPPED} else f"{states}"
