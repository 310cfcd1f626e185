"""``celery batch serve`` as a user starts it, and its clients."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psutil
import pytest

from celery_batch.processes.managed_process import ManagedProcess, wait_until
from celery_batch.serve.processes import ProcessStatus, read_status
from tests.services.forked import run
from tests.services.servers.ports import quiet_port
from tests.services.setup import CELERY, ROOT

#: Seconds for anything that takes a moment on a slow machine.
PATIENCE = 90.0


class Serving:
    """A ``serve`` that runs, and what its clients and its operator do."""

    def __init__(self, config: str, folder: Path, *options: str, **env: str) -> None:
        self.run = folder / "run"
        self.port = quiet_port()
        if config:
            path = folder / "serve.yaml"
            path.write_text(config)
            options = ("-c", str(path), *options)
        self._env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            # A shell may have them for something else: these are no servers of ours.
            "CELERY_BROKER_URL": "redis://127.0.0.1:1/0",
            "CELERY_RESULT_BACKEND": "redis://127.0.0.1:1/0",
            **env,
        }
        self.child = ManagedProcess(
            [CELERY, "batch", "serve", *options, "-p", str(self.port), "--dir", str(self.run)],
            folder / "serve.log",
            env=self._env,
        )
        self._clients = ThreadPoolExecutor(64)
        #: What `status` said when it was ready.
        self.first_status: list[str] = []

    @property
    def said(self) -> str:
        """Everything it has printed."""
        return self.child.log.read_text()

    def ready(self) -> Serving:
        """Return when it has said that it is."""
        self.until(lambda: "" if " is ready on " in self.said else "has not said it")
        self.first_status = self.status()
        return self

    def until(self, ready: Callable[[], str], what: str = "serve") -> None:
        """Wait until something is as it should be."""
        wait_until(ready, [self.child], what=what, timeout=PATIENCE)

    def post(self, body: Any, path: str = "/predict") -> tuple[int, Any]:
        """Post JSON, or bytes as they are; return the status and what JSON comes back."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self._request("POST", path, data)

    def get(self, path: str) -> tuple[int, Any]:
        """Get a page of JSON."""
        return self._request("GET", path)

    def text(self, path: str) -> str:
        """Get a page as it is."""
        return self._exchange("GET", path)[1].decode()

    def _request(self, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
        status, answer = self._exchange(method, path, body)
        return status, json.loads(answer)

    def _exchange(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)) as connection:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def asking(self, info: dict[str, Any]) -> Future[tuple[int, Any]]:
        """Post beside this thread."""
        return self._clients.submit(self.post, info)

    def process(self, program: str) -> ProcessStatus:
        """Return the status of a process."""
        found = read_status(self.run)
        assert found is not None
        return next(row for row in found[1] if row.name == program)

    def status(self) -> list[str]:
        """Return the lines of ``celery batch status``."""
        command = [CELERY, "batch", "status", "--dir", str(self.run)]
        done = run(command, env=self._env)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def pid(self, program: str) -> int:
        """Return the id of the process itself, below its reaper; 0 if there is none."""
        try:
            (server,) = psutil.Process(self.process(program).pid).children()
        except (psutil.NoSuchProcess, ValueError):
            return 0
        return server.pid

    def kill(self, program: str) -> None:
        """Kill a process, and return when another has taken its place."""
        self.until(lambda: "" if self.pid(program) else f"{program} is away")  # 0: all of us
        before = self.pid(program)
        os.kill(before, signal.SIGKILL)
        self.until(lambda: "" if self.pid(program) not in (0, before) else f"{program} is away")

    def family(self) -> list[psutil.Process]:
        """Return the process of the command itself, and all that it has started."""
        (command,) = psutil.Process(self.child.pid).children()
        return [command, *command.children(recursive=True)]

    def close(self) -> None:
        """Stop it as a supervisor would."""
        self.child.stop(grace=PATIENCE)
        self._clients.shutdown(cancel_futures=True)


def _runs(process: psutil.Process) -> str:
    """Describe a process that has not ended; one that has may not have been waited for yet."""
    try:
        return "" if process.status() == psutil.STATUS_ZOMBIE else str(process)
    except psutil.NoSuchProcess:
        return ""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Callable[..., Serving]]:
    """Start one with a configuration of its own, or none, and further options."""
    running: list[Serving] = []

    def start(config: str, *options: str, **env: str) -> Serving:
        running.append(Serving(config, tmp_path, *options, **env))
        return running[-1]

    yield start
    for each in running:
        each.close()


@pytest.fixture(scope="module")
def serving(
    tmp_path_factory: pytest.TempPathFactory,
    redis_server: Any,  # noqa: ARG001 (where there is none, this is skipped)
) -> Iterator[Serving]:
    """One for all tests of a module, with a Redis of its own; SIGTERM ends all of it."""
    folder = tmp_path_factory.mktemp("serving")
    config = f"""
GPUs: ""
Handle: tests.apps.models.handles:Trial
MaxWait: 0.05
TimeLimit: 60
Env:
  TRIAL_FOLDER: {folder}
"""
    serving = Serving(config, folder)
    serving.ready()
    family = serving.family()
    assert len(family) > 8
    yield serving
    family = serving.family()
    serving.close()
    wait_until(lambda: ", ".join(filter(None, map(_runs, family))), [], what="the end", timeout=60)
    assert re.search("Everything has stopped", serving.said)
    assert not serving.run.exists()
