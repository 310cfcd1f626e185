"""Who takes part over HTTP, and how each is run."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.peers import peers_python
from celery_batch.cli.child import Child, wait_until
from deploy.local.browser import why_not

__all__ = ["CONTESTANTS", "Contestant", "Site", "site"]

_ROOT = Path(__file__).parents[1]
_LUA = Path(__file__).parent / "lua"

#: Seconds until a server answers.
_READY_TIMEOUT = 60.0

#: Of a web server: as many as there are cores, for none of them leaves its interpreter idle.
_PROCESSES = "2"

#: Threads of a synchronous process, as the documents have it: nobody spreads the clients evenly
#: over the processes, and whom one has no thread for waits for somebody else's answer.
_THREADS = "144"

_QUIET = ("--log-level", "warning", "--no-access-log")
#: As the documents have it.
_SAFE = ("--no-proxy-headers", "--http", "webapp.uvicorn_http:BoundedHttp")
_WORKERS = ("-w", _PROCESSES)
_GTHREAD = ("-m", "gunicorn", "-k", "gthread", *_WORKERS, "--threads", _THREADS)
#: A thread for what works, and none for what waits.
_PARKING = (*("-m", "gunicorn", "-k", "webapp.parking.ParkingWorker"), *_WORKERS, "--threads", "16")
_GEVENT = ("-m", "gunicorn", "-k", "gevent", *_WORKERS)
_GUNICORN = ("--no-control-socket", "--log-level", "warning", "-b", "127.0.0.1:{port}")
_UVICORN = ("-m", "uvicorn", "--workers", _PROCESSES, *_QUIET, *_SAFE, "--port", "{port}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """
    A web server.

    Args:
        name: How tables call it.
        command: Python's options, with a place for the port.
        path: Where it is asked.
        script: What it is asked, in Lua.
        peers: Its environment; ours have none of their own.
        ready: What answers 200 once it will answer everything.
    """

    name: str
    command: tuple[str, ...]
    path: str
    script: Path
    peers: str = ""
    ready: str = ""

    @property
    def is_ours(self) -> bool:
        """Whether it asks a Celery worker of ours."""
        return not self.peers


def _ours(name: str, *command: str) -> Contestant:
    return Contestant(
        name=f"ours: {name}",
        command=command,
        path="/predict",
        script=_LUA / "inputs.lua",
        ready="/readyz",
    )


def _peer(name: str, module: str, path: str, script: str, peers: str) -> Contestant:
    command = ("-m", f"bench.rivals.{module}", "{port}")
    ready = "/health" if module == "litserve_server" else ""
    lua = _LUA / script
    return Contestant(name=name, command=command, path=path, script=lua, peers=peers, ready=ready)


CONTESTANTS = (
    _peer("service-streamer, Flask", "flask_streamer", "/stream", "form.lua", "peers"),
    _peer("LitServe", "litserve_server", "/predict", "number.lua", "peers-http"),
    _peer("mosec", "mosec_server", "/inference", "number.lua", "peers-http"),
    _ours("Flask, gunicorn gthread", *_GTHREAD, *_GUNICORN, "webapp.flask_app:app"),
    _ours("Flask, gthread that parks", *_PARKING, *_GUNICORN, "webapp.flask_app:app"),
    _ours("Flask, gunicorn gevent", *_GEVENT, *_GUNICORN, "webapp.flask_app:app"),
    _ours("Django, gunicorn gthread", *_GTHREAD, *_GUNICORN, "webapp.django_app.wsgi:application"),
    _ours(
        "Django, gthread that parks", *_PARKING, *_GUNICORN, "webapp.django_app.wsgi:application"
    ),
    _ours("FastAPI, uvicorn", *_UVICORN, "webapp.asgi_app:app"),
)


class Site:
    """
    A server that runs, and what it needs.

    Args:
        url: Where it is asked.
        children: All processes that we have started for it.
    """

    def __init__(self, url: str, children: list[Child]) -> None:
        self.url = url
        self._children = children

    def cpu(self) -> float:
        """Return the seconds of CPU that its processes have used."""
        keepers = [psutil.Process(child.pid) for child in self._children]
        family = [one for keeper in keepers for one in keeper.children(recursive=True)]
        return sum(_seconds(one.cpu_times()) for one in family)


def _seconds(times: Any) -> float:
    return float(times.user + times.system)


@contextmanager
def site(who: Contestant, broker: str) -> Iterator[Site]:
    """
    Run a server, with a worker where it needs one; yield it when it answers.

    Args:
        who: Is run.
        broker: A Redis.

    Raises:
        ServerFailed: A part ended, or did not get ready; with its log's last lines.
    """
    with ExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory()))
        environ = {"CELERY_BROKER_URL": broker, "CELERY_RESULT_BACKEND": broker}
        environ |= {"PYTHONPATH": str(_ROOT), "WEBAPP_CONTRACT": "bench.doors:contract"}
        env, port, children = {**os.environ, **environ}, _free_port(), []
        if who.is_ours:
            worker = [sys.executable, "-m", "celery", "-A", "bench.doors", "worker"]
            worker += ["--concurrency=1", "--loglevel=WARNING", "--without-mingle"]
            children.append(exits.enter_context(Child(worker, folder / "worker.log", env=env)))
        python = sys.executable if who.is_ours else peers_python(who.peers)
        command = [python, *(option.format(port=port) for option in who.command)]
        children.append(exits.enter_context(Child(command, folder / "web.log", env=env)))
        base = f"http://127.0.0.1:{port}"
        _await(base, who, children)
        yield Site(f"{base}{who.path}", children)


def _await(base: str, who: Contestant, children: list[Child]) -> None:
    def why() -> str:
        reason = why_not(f"{base}{who.ready}")
        return "" if not who.ready and reason.startswith(("404", "405")) else reason

    wait_until(why, children, what=who.name, timeout=_READY_TIMEOUT)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
