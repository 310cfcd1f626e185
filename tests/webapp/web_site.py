"""A running web app, and how the tests ask it."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from celery_batch.processes.managed_process import ManagedProcess, wait_until
from tests.services.forked import start

ROOT = Path(__file__).parents[2]

_GUNICORN = ("gunicorn", "--no-control-socket", "--graceful-timeout=3")
_UVICORN = ("uvicorn", "--timeout-graceful-shutdown=3")

#: The apps on their servers, without the socket.
COMMANDS = {
    "fastapi": [*_UVICORN, "webapp.fastapi_app:app"],
    "flask": [*_GUNICORN, "--threads=16", "webapp.flask_app:app"],
    "django": [*_GUNICORN, "--threads=16", "webapp.django_site.wsgi"],
    "flask-gevent": [*_GUNICORN, "-kgevent", "webapp.flask_app:app"],
    "django-asgi": [*_UVICORN, "--lifespan=off", "webapp.django_site.asgi:application"],
}

#: What apps on these servers import, but for what depends on their environment.
IMPORTS = {
    "gunicorn": (
        "gunicorn.app.wsgiapp",
        "gunicorn.workers.gthread",
        "flask",
        "django.core.handlers.wsgi",
    ),
    "uvicorn": ("uvicorn.main", "fastapi"),
}

#: Seconds for the inputs of a request, and their number, in all tests.
TIMEOUT, MAX_INPUTS = 8.0, 8

_ENVIRON = {
    "WEBAPP_TASK": "web_tasks:upper",
    "WEBAPP_NAIVE_TASK": "web_tasks:upper_one",
    "WEBAPP_IMAGE_TASK": "web_tasks:length",
    "WEBAPP_TIMEOUT": str(TIMEOUT),
    "WEBAPP_MAX_INPUTS": str(MAX_INPUTS),
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(ROOT)]),
}


def environ(broker: str, backend: str = "", **more: str) -> dict[str, str]:
    """Return the environment of a web app, or of its worker."""
    urls = {"CELERY_BROKER_URL": broker, "CELERY_RESULT_BACKEND": backend or broker}
    return {**os.environ, **_ENVIRON, **urls, **more}


@dataclass
class Site:
    """A running web app."""

    kind: str
    url: str
    child: ManagedProcess
    client: httpx.Client

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    @property
    def log(self) -> str:
        """All that the server has written so far."""
        return self.child.log.read_text()

    def predict(self, *inputs: Any, **headers: str) -> httpx.Response:
        """POST inputs to /predict; headers by their names, with _ for -."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.post("/predict", json={"inputs": inputs}, headers=named)

    def until(self, path: str, status: int = 200) -> httpx.Response:
        """Return a path's answer when it has this status."""
        seen: list[httpx.Response] = []

        def why_not() -> str:
            try:
                seen.append(self.client.get(path))
            except httpx.TransportError as error:
                return repr(error)
            return "" if seen[-1].status_code == status else f"{seen[-1]} {seen[-1].text}"

        wait_until(why_not, [self.child], what=f"{self.kind} {path}", timeout=60)
        return seen[-1]


@contextmanager
def running(kind: str, log: Path, env: dict[str, str]) -> Iterator[Site]:
    """Run an app on its server, on a socket that it inherits; requests wait until it is up."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        # asyncio sets it only where it knows that a socket is one of TCP.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        number = listener.fileno()
        program, *options = COMMANDS[kind]
        bind = f"--bind=fd://{number}" if program == "gunicorn" else f"--fd={number}"
        line = [sys.executable, "-m", program, *options, bind]
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        child = start(line, log, env=env, pass_fds=[number], imports=IMPORTS[program])
        try:
            with httpx.Client(base_url=url, timeout=60) as client:
                yield Site(kind, url, child, client)
        finally:
            child.stop(grace=0)


def error_of(response: httpx.Response) -> dict[str, str]:
    """Return what a response tells of its error, in our words or in FastAPI's."""
    body = response.json()
    return body["error"] if "error" in body else {"type": "detail", "message": body["detail"]}
