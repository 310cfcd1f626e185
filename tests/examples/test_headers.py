"""Each program runs as its own first lines say, with its real model."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from celery_batch.processes.managed_process import ManagedProcess, wait_until
from demo.http_client import why_not
from tests.services.servers.ports import quiet_port
from tests.services.setup import ROOT

pytestmark = pytest.mark.thorough("the commands of the examples, as their headers give them")


def commands(program: str) -> list[list[str]]:
    """Return the commands in a program's docstring, as words."""
    text = ast.get_docstring(ast.parse((ROOT / "examples" / f"{program}.py").read_text()))
    shown = "\n".join(line for line in text.splitlines() if line.startswith("    "))
    lines = (shlex.split(line, comments=True) for line in shown.replace("\\\n", " ").splitlines())
    return [line for line in lines if line]


def here(words: list[str], port: int) -> list[str]:
    """Return a command with this environment's programs and a port of its own."""
    program, *rest = (word.replace("5005", str(port)) for word in words)
    scripts = Path(sys.executable).parent
    return [str(scripts / program) if (scripts / program).exists() else program, *rest]


@pytest.fixture
def env(broker):
    """What the programs see."""
    return {**os.environ, "CELERY_BROKER_URL": broker, "PYTHONPATH": str(ROOT)}


def answers(program: str, server: list[str], env, folder: Path) -> list:
    """Run a server as its program says, with all that it needs; return what curl gets."""
    port = quiet_port()
    with contextlib.ExitStack() as exits:
        needed = [words for words in commands(program) if words[0] == "python"]
        children = [
            exits.enter_context(
                ManagedProcess(here(words, port), folder / f"{number}.log", env=env)
            )
            for number, words in enumerate([*needed, server])
        ]
        url = f"http://127.0.0.1:{port}"
        wait_until(
            lambda: "" if (reason := why_not(url)).startswith("404") else reason,
            children,
            what="web server",
            timeout=60,
        )
        curl = next(words for words in commands(program) if words[0] == "curl")
        done = subprocess.run(
            [*here(curl, port), "--silent", "--noproxy", "*", "--max-time", "60"],
            cwd=folder,
            capture_output=True,
            check=True,
        )
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        ("infill_naive", "flask"),
        ("infill_threaded", "flask"),
        ("infill_threaded", "gunicorn"),
        ("infill_processes", "flask"),
        ("infill_processes", "gunicorn"),
        ("infill_redis", "gunicorn"),
    ],
)
def test_web_server_answers(program, kind, env, tmp_path):
    """A web server, started with each of its commands, answers its own curl."""
    (words,) = (words for words in commands(program) if words[0] == kind)

    assert ["you"] == answers(program, words, env, tmp_path)


def test_pictures_are_classified(env, tmp_path):
    """The web server of the images, started with its first command, answers its own curl."""
    words = next(words for words in commands("classify") if words[0] == "flask")
    for name in ("cat.jpg", "dog.png"):
        Image.new("RGB", (300, 200), "grey").save(tmp_path / name)

    assert [0.0, 0.0] < [each["probability"] for each in answers("classify", words, env, tmp_path)]


def test_future_api_prints_the_answers(env):
    """Each command of the Future API program ends well, with the sentences filled in."""
    for words in commands("future_api"):
        done = subprocess.run(
            here(words, 0), cwd=ROOT, env=env, capture_output=True, text=True, check=True
        )

        assert "Happy birthday to [MASK]. → you" in done.stdout
