"""The web servers that are measured over HTTP: ours and the peers', each with what it needs."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import ProxyHandler, Request, build_opener

import psutil

from bench.models.bert import expected
from bench.servers.peers import peers_python
from bench.servers.testbed import cpu_of, free_port
from celery_batch.processes.managed_process import ManagedProcess, wait_until
from celery_batch.processes.redis_server import RedisServer

__all__ = ["HTTP_SERVERS", "Query", "RunningServer", "example_server", "running_server"]

_ROOT = Path(__file__).parents[2]

#: Seconds until a server answers, and seconds to wait for one answer.
_READY_TIMEOUT, _ANSWER_TIMEOUT = 60.0, 10.0

#: So many answers in a row within so many seconds, and a server is idle again; seconds until it is.
_CALM, _SWIFT, _SETTLE_TIMEOUT = 3, 0.25, 60.0

#: Processes of a web server, one for each core of the machine of the tables.
_PROCESSES = "2"

#: Threads of a process of gunicorn.  It has to have one for each client: the kernel does not
#: spread connections evenly, and a client without a thread waits for another client's answer.
_THREADS = "144"

_GUNICORN = (
    "-m", "gunicorn", "-b", "127.0.0.1:{port}",
    "--log-level", "warning", "--no-control-socket",
)  # fmt: skip
_THREADED = (*_GUNICORN, "-k", "gthread", "--threads", _THREADS)
_GTHREAD = (*_THREADED, "-w", _PROCESSES)
_GEVENT = (*_GUNICORN, "-k", "gevent", "-w", _PROCESSES)
_UVICORN = (
    "-m", "uvicorn", "--workers", _PROCESSES, "--port", "{port}",
    "--log-level", "warning", "--no-access-log",
)  # fmt: skip

_JSON, _FORM = "application/json", "application/x-www-form-urlencoded"


@dataclass(frozen=True, slots=True)
class Query:
    """What a server is asked, again and again."""

    path: str  # where it is posted
    body: str
    content_type: str
    answer: Any  # what comes back, as JSON

    def write_script(self, path: Path) -> None:
        """Write it as a script for wrk."""
        path.write_text(
            f'wrk.method = "POST"\nwrk.body = {json.dumps(self.body)}\n'
            f'wrk.headers["Content-Type"] = "{self.content_type}"\n'
        )


@dataclass(frozen=True, slots=True)
class HttpServer:
    """A web server and its workers."""

    #: Its name in tables.
    name: str
    #: Python's options, with a place for the port.
    command: tuple[str, ...]
    #: What it is asked.
    query: Query
    #: Python's options for the process that has the model, if the server has none itself; with
    #: places for Redis' URL and its address.
    worker: tuple[str, ...] = ()
    #: The environment of a peer, by the name of its file; "" for ours.
    peers: str = ""

    @property
    def is_ours(self) -> bool:
        """Whether it calls a Celery worker of ours."""
        return not self.peers

    @property
    def python(self) -> str:
        """The Python that runs it."""
        return peers_python(self.peers) if self.peers else sys.executable


_OUR_WORKER = (
    "-m", "celery", "-A", "bench.app", "worker", "--concurrency=1",
    "--loglevel=WARNING", "--without-mingle",
)  # fmt: skip
_INPUTS = Query("/predict", '{"inputs": ["3"]}', _JSON, {"outputs": ["33"]})
_FIELD = Query("/stream", "s=3", _FORM, [6])


def _ours(name: str, *command: str) -> HttpServer:
    return HttpServer(f"ours: {name}", command, _INPUTS, _OUR_WORKER)


def _server_of_models(name: str, path: str, *command: str) -> HttpServer:
    query = Query(path, '{"x": 3}', _JSON, {"y": 6})
    return HttpServer(name, command, query, peers="peers-http")


HTTP_SERVERS = (
    HttpServer(
        "service-streamer: ThreadedStreamer",
        ("-m", "bench.servers.peers_http.threaded_streamer", "{port}"),
        _FIELD,
        peers="peers",
    ),
    HttpServer(
        "service-streamer: RedisStreamer, gevent",
        (*_GEVENT, "bench.servers.peers_http.redis_streamer:app"),
        _FIELD,
        ("-m", "bench.systems.redis_streamer_worker", "{address}", "1"),
        peers="peers",
    ),
    _server_of_models(
        "LitServe",
        "/predict",
        "-m",
        "bench.servers.peers_http.litserve_server",
        "{port}",
        _PROCESSES,
    ),
    _server_of_models(
        "mosec", "/inference", "-m", "bench.servers.peers_http.mosec_server", "{port}"
    ),
    _ours("Flask, gthread", *_GTHREAD, "webapp.flask_app:app"),
    _ours("Flask, gevent", *_GEVENT, "webapp.flask_app:app"),
    _ours("Django, gthread", *_GTHREAD, "webapp.django_site.wsgi"),
    _ours("Django, uvicorn", *_UVICORN, "--lifespan", "off", "webapp.django_site.asgi:application"),
    _ours("FastAPI, uvicorn", *_UVICORN, "webapp.fastapi_app:app"),
)


def example_server(kind: str, workers: int) -> HttpServer:
    """Return a web server of `examples`; that behind Redis has so many workers."""
    sentence = "Happy birthday to [MASK]."
    path = "/naive" if kind == "naive" else "/stream"
    query = Query(path, urlencode({"s": sentence}), _FORM, [expected(sentence)])
    has_workers = kind == "redis"
    gunicorn = _GEVENT if has_workers else (*_THREADED, "-w", "1")
    command = (*gunicorn, f"bench.servers.example_servers:{kind}()")
    worker = ("-m", "bench.models.bert", str(workers)) if has_workers else ()
    return HttpServer(f"examples: {kind}", command, query, worker)


class RunningServer:
    """A web server that answers."""

    def __init__(
        self,
        url: str,
        query: Query,
        script: Path,
        children: list[ManagedProcess],
        redis: ManagedProcess,
    ) -> None:
        self.url = url
        self.script = script
        self.children = children
        self._query = query
        self._redis = redis

    def settle(self) -> None:
        """
        Return when the requests are done whose clients have gone, as wrk's have when it ends.

        Without that the next requests would wait behind them uncounted.

        Raises:
            RuntimeError: There is no answer, or it is wrong.
        """
        deadline = time.monotonic() + _SETTLE_TIMEOUT
        calm = 0
        while calm < _CALM and (began := time.monotonic()) < deadline:
            if reason := _why_not(self.url, self._query):
                tails = [child.tail() for child in self.children]
                raise RuntimeError("\n".join([f"{self.url}: {reason}", *tails]))
            calm = calm + 1 if time.monotonic() - began < _SWIFT else 0

    def cpu(self) -> float:
        """Return the seconds of CPU that its processes have used, Redis' left out."""
        return sum(map(_cpu, self.children))

    def redis_cpu(self) -> float:
        """Return the seconds of CPU that Redis has used."""
        return _cpu(self._redis)


def _cpu(child: ManagedProcess) -> float:
    processes = psutil.Process(child.pid).children(recursive=True)
    return sum(map(cpu_of, processes))


@contextmanager
def running_server(server: HttpServer, redis: RedisServer, url: str) -> Iterator[RunningServer]:
    """
    Run a server, with a worker where it needs one; yield it when it answers correctly.

    Raises:
        ServerFailed: A part ended, or did not get ready; with its log's last lines.
    """
    with ExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory()))
        env, port = {**os.environ, **_settings(url)}, free_port()
        places = {"port": port, "address": f"127.0.0.1:{redis.port}"}
        commands = {"worker": server.worker, "web": server.command}
        children = []
        for name, options in commands.items():
            if options:
                command = [server.python, *(each.format(**places) for each in options)]
                child = ManagedProcess(command, folder / f"{name}.log", env=env)
                children.append(exits.enter_context(child))
        address = f"http://127.0.0.1:{port}{server.query.path}"
        wait_until(
            lambda: _why_not(address, server.query),
            children,
            what=server.name,
            timeout=_READY_TIMEOUT,
        )
        script = folder / "query.lua"
        server.query.write_script(script)
        yield RunningServer(address, server.query, script, children, redis.child)


def _settings(url: str) -> dict[str, str]:
    ours = {"CELERY_BROKER_URL": url, "CELERY_RESULT_BACKEND": url, "WEBAPP_TIMEOUT": "30"}
    tasks = {"WEBAPP_TASK": "bench.app:web", "WEBAPP_NAIVE_TASK": "bench.app:naive"}
    theirs = {"BENCH_REDIS": url, "BENCH_MODEL": "cost"}
    return {"PYTHONPATH": str(_ROOT), **ours, **tasks, "WEBAPP_IMAGE_TASK": "", **theirs}


_opener = build_opener(ProxyHandler({}))


def _why_not(address: str, query: Query) -> str:
    """Return "" if a server answers the query correctly, else what came instead."""
    headers = {"Content-Type": query.content_type}
    request = Request(address, query.body.encode(), headers)  # noqa: S310 (our own server)
    try:
        with _opener.open(request, timeout=_ANSWER_TIMEOUT) as response:
            answer = json.load(response)
    except (OSError, HTTPException, ValueError) as error:
        return str(error) or type(error).__name__
    return "" if answer == query.answer else f"a wrong answer: {answer}"
