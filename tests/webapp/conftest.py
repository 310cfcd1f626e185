"""Real servers for the web tier's tests: Redis, Celery workers, gunicorn, uvicorn."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
from web_door import KINDS, Door, command

from celery_batch.cli.child import Child
from celery_batch.cli.redis_server import RedisServer
from tests.services.forked import start
from tests.services.shop import CELERY

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

#: What makes a door one to the stand-in service; no test waits long for a heartbeat.
OURS = {"WEBAPP_CONTRACT": "web_standin:contract", "WEBAPP_HEARTBEAT": "0.4"}


#: The other servers of the same apps, which hold to the same contract.
OTHERS = {"flask-gevent", "flask-parking", "django", "django-parking", "gevent", "parking"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Try each framework on one server, and on all of them in the thorough run."""
    for item in items:
        chosen = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if any(isinstance(each, str) and each in OTHERS for each in chosen):
            item.add_marker(pytest.mark.thorough("web apps on their other servers"))


@dataclass
class Servers:
    """Starts what a test needs around one Redis; each server ends with its block."""

    redis: RedisServer
    logs: Path

    def client(self):
        """Return a client of the Redis, to look around with."""
        path = str(self.redis.directory / "redis.sock")
        return redis.Redis(unix_socket_path=path, decode_responses=True)

    def environ(self, more):
        """Return the environment of a server here, with some variables more."""
        path = os.pathsep.join([str(HERE), str(ROOT)])
        url = self.redis.url
        urls = {"CELERY_BROKER_URL": url, "CELERY_RESULT_BACKEND": url, "PYTHONPATH": path}
        return {**os.environ, **urls, **OURS, **more}

    def _log(self, name):
        """Return a new file for a server's output."""
        return self.logs / f"{name}{len(list(self.logs.iterdir()))}.log"

    @contextmanager
    def worker(self, app="web_standin_tasks", options=("--pool=threads", "-c8"), **environ):
        """Run a Celery worker; when it is ready is for a door's /readyz to say."""
        log = self._log("worker")
        command = [CELERY, "-A", app, "worker", "--loglevel=INFO"]
        name = f"--hostname={log.stem}@test"
        with start([*command, name, *options], log, env=self.environ(environ)) as child:
            yield child

    @contextmanager
    def door(self, kind="flask", ready="/healthz", options=(), **environ):
        """Run an app on its server; wait until a path answers."""
        with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
            number = listener.fileno()
            line = [sys.executable, *command(kind, number), *options]
            environment = self.environ(environ)
            log = self._log(kind)
            with Child(line, log, env=environment, pass_fds=[number]) as child:
                door = Door(listener.getsockname()[1], child)
                door.until(ready)
                yield door


@pytest.fixture(scope="session")
def servers(tmp_path_factory):
    """What to start servers with, around a Redis that stays up."""
    with RedisServer() as server:
        yield Servers(server, tmp_path_factory.mktemp("logs"))


@pytest.fixture
def own_servers(tmp_path):
    """What to start servers with, around a Redis that the test may stop and start."""
    # A test's own folder may have too long a path for a socket.
    folder = tempfile.mkdtemp(prefix="web-")
    with RedisServer(folder, appendonly=True) as server:
        yield Servers(server, tmp_path)
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def doors(servers):
    """Opens a door of some kind, once, with a warm worker behind it."""
    opened = {}
    with servers.worker(), ExitStack() as running:

        def open_door(kind):
            if kind not in opened:
                opened[kind] = running.enter_context(servers.door(kind, ready="/readyz"))
            return opened[kind]

        yield open_door


@pytest.fixture(params=KINDS)
def door(request, doors):
    """Each of the doors in turn, with a warm worker behind it."""
    return doors(request.param)


@pytest.fixture
def idle_door(servers):
    """A door to a service that has no workers, with a queue of its own."""
    with servers.door("fastapi", STANDIN_QUEUE="nobody") as door:
        yield door
