"""Demo and up, run as a newcomer runs them: everything starts, answers, ends."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from demo.http_client import post_json, why_not
from demo.servers import _bound
from tests.services.servers.ports import quiet_port

ROOT = Path(__file__).parents[2]

#: The environment variable by which a test knows its own processes again.
MARK = "CELERY_BATCH_TEST_RUN"

ANSWERS = """
twinkle twinkle [MASK] star. → little
Happy birthday to [MASK]. → you
the answer to life, the [MASK], and everything. → universe
"""


pytestmark = [
    pytest.mark.usefixtures("redis_server"),
    pytest.mark.skipif(
        not Path("/proc/self/environ").exists(),
        reason="no /proc in which to see that nothing is left behind",
    ),
]


class Command:
    """A command of the demo, its processes and its temporary files."""

    def __init__(self, folder, module, *arguments, **environment):
        """Start the command in an environment of its own."""
        self.folder = Path(folder)
        self.mark = uuid.uuid4().hex
        env = {**os.environ, "TMPDIR": folder, MARK: self.mark, **environment}
        env = {name: value for name, value in env.items() if value is not None}
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.said = ""

    def read_until(self, pattern, seconds=100):
        """Read output until a pattern is in it; return the match."""
        deadline = time.monotonic() + seconds
        while not (match := re.search(pattern, self.said)):
            wait = max(0, deadline - time.monotonic())
            readable = select.select([self.process.stdout], [], [], wait)[0]
            piece = os.read(self.process.stdout.fileno(), 4096).decode() if readable else ""

            assert piece, f"no {pattern!r} in:\n{self.said}"
            self.said += piece
        return match

    def end(self, number=None):
        """Send a signal if asked to, wait for the end, return the exit code."""
        if number is not None:
            self.process.send_signal(number)
        rest, _ = self.process.communicate(timeout=100)
        self.said += rest
        return self.process.returncode

    def processes(self):
        """Return the command lines of all living processes of this command by their ids."""
        found = {}
        mark = f"{MARK}={self.mark}".encode()
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found[int(folder.name)] = line
            except OSError:
                continue  # it has just ended, or is not ours
        return found

    def left(self, seconds=0.0):
        """Return what is left of processes and files, after a while if need be."""
        deadline = time.monotonic() + seconds
        while (left := [*self.processes().values(), *self.folder.iterdir()]) and (
            time.monotonic() < deadline
        ):
            time.sleep(0.02)
        return left


@pytest.fixture
def run():
    """Start commands that end with the test; their temporary folder has a short path."""
    commands = []
    with tempfile.TemporaryDirectory(prefix="cb") as folder:

        def run(module, *arguments, **environment):
            commands.append(Command(folder, module, *arguments, **environment))
            return commands[-1]

        yield run
        for command in commands:
            command.process.kill()
            command.end()


def test_demo_shows_what_it_promises(run):
    """The demo answers the sentences, compares both ways, exits 0 and leaves nothing."""
    demo = run("demo", "--requests=150", "--clients=20")
    code = demo.end()
    rows = re.findall(r"│ (/\w+) .*│\s+\d+ │\s+\d+ │\s+\d+ │\s+([\d.]+) │\s+(\d+) │", demo.said)

    assert code == 0, demo.said
    assert ANSWERS in demo.said
    assert "150 requests of one sentence each, 20 clients at once" in demo.said
    assert [(path, errors) for path, _, errors in rows] == [("/naive", "0"), ("/stream", "0")]
    assert rows[0][1] == "1.0"
    assert float(rows[1][1]) > 1.5
    assert demo.left() == []


_PARTS = pytest.mark.thorough("each part of the demo that does not start")


@pytest.mark.parametrize(
    ("variable", "value", "part", "words"),
    [
        ("UVICORN_BACKLOG", "many", "web", "'many' is not a valid integer"),
        pytest.param("HF_MODEL", "/no/such/model", "worker", "/no/such/model", marks=_PARTS),
        pytest.param("REDIS_SERVER", "/bin/false", "redis", "(nothing)", marks=_PARTS),
    ],
)
def test_part_that_does_not_start_is_named(run, variable, value, part, words):
    """A part that fails at the start is named with its log's end; only the logs are left."""
    demo = run("demo", **{variable: value})
    code = demo.end()
    kept = re.search(r"^The logs are kept in (\S+)$", demo.said, re.MULTILINE)

    assert code == 1
    assert re.search(rf"^{part} ended with exit code \d+$", demo.said, re.MULTILINE)
    assert re.search(rf"^--- {part}: the end of .*/{part}.log$", demo.said, re.MULTILINE)
    assert words in demo.said
    assert demo.left() == [Path(kept[1])]


def test_missing_redis_is_explained(run):
    """Without a Redis the demo says so and leaves not even a folder."""
    demo = run("demo", REDIS_SERVER="/no/such/redis")
    code = demo.end()

    assert code == 1
    assert "REDIS_SERVER: no such program: /no/such/redis" in demo.said
    assert demo.left() == []


@pytest.mark.thorough("a demo whose worker is killed under load")
def test_worker_killed_in_the_middle_is_reported(run):
    """A worker that is killed in the middle ends the demo, which names it and how it ended."""
    demo = run("demo", "--requests=100000")
    demo.read_until("everything. → universe")
    workers = [
        pid
        for pid, line in demo.processes().items()
        if "-A workers worker" in line and "reaper.py" not in line
    ]
    os.kill(min(workers), signal.SIGKILL)
    code = demo.end()

    assert code == 1
    assert "worker was killed by SIGKILL" in demo.said
    assert [path.is_dir() for path in demo.left()] == [True]


@pytest.mark.thorough("a demo that is interrupted under load")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_demo_leaves_nothing(run, number):
    """Ctrl-C and SIGTERM under load stop everything before the demo ends."""
    demo = run("demo", "--requests=100000")
    demo.read_until("everything. → universe")
    code = demo.end(number)

    assert code == 130
    assert "Everything is stopped." in demo.said
    assert demo.left() == []


def test_killed_demo_leaves_nothing(run):
    """SIGKILL of the demo under load ends all its servers and removes its folder."""
    demo = run("demo", "--requests=100000")
    demo.read_until("everything. → universe")
    before = demo.left()
    demo.end(signal.SIGKILL)

    assert len(before) >= 7
    assert demo.left(seconds=60) == []


def test_up_serves_until_interrupted(run):
    """``up`` answers over HTTP, Flower's API names each sentence, Ctrl-C ends all in peace."""
    up = run("demo.up", FLOWER_UNAUTHENTICATED_API=None)
    flower = up.read_until(r"Flower is ready after .*: (\S+)\n")[1]
    web = up.read_until(r"curl (\S+)/stream")[1]
    up.read_until("Ctrl-C stops everything")
    inputs = ["twinkle twinkle [MASK] star.", "Happy birthday to [MASK]."]
    outputs = post_json(f"{web}/predict", {"inputs": inputs})["outputs"]
    api = up.read_until(r"Script: +curl (\S+)/api/tasks\n")[1]
    seen = tasks_in_flower(api, 2)
    code = up.end(signal.SIGINT)

    assert outputs == ["little", "you"]
    assert urlsplit(api).hostname == "127.0.0.1"
    assert api == flower
    assert {task["name"] for task in seen} == {"workers.infill"}
    assert sorted(task["args"] for task in seen) == sorted(f"({text!r},)" for text in inputs)
    assert all(task["runtime"] > 0 and task["worker"].startswith("celery@") for task in seen)
    assert code == 0
    assert up.left() == []


def tasks_in_flower(flower, count):
    """Return the finished tasks that Flower knows, once it knows this many."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        tasks = get_json(f"{flower}/api/tasks?state=SUCCESS")
        if len(tasks) >= count:
            return list(tasks.values())
        time.sleep(0.1)
    pytest.fail(f"Flower shows {tasks}")


def get_json(url):
    """Return the JSON that a URL answers with."""
    return httpx.get(url, timeout=60, trust_env=False).raise_for_status().json()


def test_taken_port_gives_way_to_a_free_one():
    """A wanted port is used when it is free; when it is taken, a free one is."""
    port = quiet_port()
    with _bound(port) as second:
        wanted = second.getsockname()[1]
    with socket.create_server(("127.0.0.1", port)), _bound(port) as third:
        other = third.getsockname()[1]

    assert wanted == port
    assert other not in {0, port}


def test_absent_web_server_has_a_reason():
    """Asking where nobody listens gives the reason instead of an exception."""
    assert "Connection refused" in why_not("http://127.0.0.1:1/readyz")
