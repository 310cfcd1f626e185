"""Real servers for the web tier's tests: Redis, Celery workers, gunicorn."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
from web_door import Door

from celery_batch.cli.child import Child
from celery_batch.cli.redis_server import RedisServer
from tests.services.forked import start
from tests.services.shop import CELERY

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


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
        return {**os.environ, **urls, **more}

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
    def door(self, app="web_standin_door:app", ready="/healthz", threads=16, **environ):
        """Run gunicorn with threads; wait until a path answers."""
        with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
            bind = listener.fileno()
            command = [
                sys.executable,
                "-m",
                "gunicorn",
                "--worker-class=gthread",
                "--no-control-socket",
            ]
            options = [f"--threads={threads}", f"--bind=fd://{bind}", "--graceful-timeout=3", app]
            environment = self.environ(environ)
            with Child(
                [*command, *options], self._log("door"), env=environment, pass_fds=[bind]
            ) as child:
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
def door(servers):
    """A door with a warm worker behind it."""
    with servers.worker(), servers.door(ready="/readyz") as door:
        yield door
