"""A worker for backfills, and the command."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from celery_batch.processes.managed_process import wait_until
from celery_batch.processes.redis_server import RedisServer
from tests.services.forked import begin, run, start
from tests.services.setup import CELERY

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


@dataclass
class Setup:
    """A Redis and a worker, and the command beside them."""

    env: dict[str, str]
    redis: RedisServer
    folder: Path

    def command(self, *options):
        """Return the command line of a backfill from in.jsonl to out.jsonl."""
        files = ["--input", str(self.folder / "in.jsonl"), "--output", str(self.out)]
        return [CELERY, "-A", "backfill_tasks", "batch", "backfill", *files, *options]

    @property
    def out(self):
        """Where the output will be."""
        return self.folder / "out.jsonl"

    def run(self, *options, text="", largest=None):
        """Run the command to its end, with a text as its input, and files no larger than that."""
        return run(self.command(*options), env=self.env, text=text, largest=largest)

    def begin(self, *options):
        """Start the command."""
        return begin(self.command(*options), env=self.env)

    def write(self, records, name="in.jsonl"):
        """Write an input of JSON lines."""
        text = "".join(json.dumps(record) + "\n" for record in records)
        (self.folder / name).write_text(text)

    def answers(self):
        """Return the output's records."""
        return [json.loads(line) for line in self.out.read_text().splitlines()]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A Redis and a worker for all tests of a module."""
    with RedisServer() as redis:
        path = os.pathsep.join([str(HERE), str(ROOT)])
        urls = {"CELERY_BROKER_URL": redis.url, "CELERY_RESULT_BACKEND": redis.url}
        env = {**os.environ, **urls, "PYTHONPATH": path}
        log = tmp_path_factory.mktemp("logs") / "worker.log"
        command = [CELERY, "-A", "backfill_tasks", "worker", "--concurrency=1", "-l", "INFO"]
        with start([*command, "--without-mingle"], log, env=env) as child:
            why = lambda: "" if "ready." in log.read_text() else "starts"  # noqa: E731
            wait_until(why, [child], what="worker", timeout=60)
            yield redis, env


@pytest.fixture
def setup(served, tmp_path):
    """The command in an empty folder."""
    redis, env = served
    return Setup(env, redis, tmp_path)


@pytest.fixture
def app(served, monkeypatch):
    """The tasks' app in this process."""
    _, env = served
    monkeypatch.syspath_prepend(str(HERE))
    for name in ("CELERY_BROKER_URL", "CELERY_RESULT_BACKEND"):
        monkeypatch.setenv(name, env[name])
    sys.modules.pop("backfill_tasks", None)
    import backfill_tasks  # noqa: PLC0415 (it reads the environment)

    return backfill_tasks
