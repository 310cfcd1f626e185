"""The tutorial on embeddings is right: its commands run on real servers and print what it shows."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from celery_batch.processes.managed_process import ManagedProcess, wait_until
from tests.docs.test_examples import write_files
from tests.services.servers.ports import quiet_port

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial" / "embeddings.md"
SCRIPTS = sysconfig.get_path("scripts")
_BASH = "/bin/bash"

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

#: The commands that run until they are stopped, by a word of each, and what they print when ready.
_SERVERS = {
    "redis": r"Ctrl-C stops it",
    "worker": r" ready\.$",
    "uvicorn": r"Uvicorn running",
    "flower": r"Connected to redis",
}

#: What differs from run to run, and what is put in its place.
_VARIES = {
    r"(?m)^ *\d+( to \d+)? [ ▏▎▍▌▋▊▉█]*\d+ +\d+%$": "",
    r"celery-batch-redis-\w+": "celery-batch-redis-*",
    r"celery@[\w.-]+": "celery@*",
    r"(full|idle|timeout|busy|ready|·)": "*",  # reasons, and states at that moment
    r"[▏▎▍▌▋▊▉█─]+": "",
    r" \(\d+:\d\d:\d\d\)": "",  # pytest's, from a minute on
    r"[\d.:]*\d( (ms|s|min)\b)?|·": "*",
}


#: What is installed here is not downloaded again; in pip's last variable 0 means "no isolation".
_OFFLINE = {
    "PYTHONPATH": sysconfig.get_path("purelib"),
    "PIP_NO_INDEX": "1",
    "PIP_NO_BUILD_ISOLATION": "0",
}


@dataclass(frozen=True)
class Step:
    """Commands of the page, and the output that it shows for them."""

    commands: str
    shown: str

    @property
    def server(self) -> str:
        """The word of the server that the commands start, or nothing."""
        words = shlex.split(self.commands)
        return next((each for each in _SERVERS if each in words), "")


def steps() -> list[Step]:
    """Return the commands of the page in order, but for the first, which install."""
    blocks = [*_FENCE.findall(PAGE.read_text()), ("", "")]
    found = [
        Step(code, shown if kind == "text" else "")
        for (language, code), (kind, shown) in pairwise(blocks)
        if language == "console"
    ]
    return found[1:]


def masked(text: str) -> list[str]:
    """Return the lines of a text without what differs from run to run."""
    for pattern, placeholder in _VARIES.items():
        text = re.sub(pattern, placeholder, text)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


class Session:
    """The shells of somebody who follows the page."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._web, self._flower = quiet_port(), quiet_port()
        ports = {"UVICORN_PORT": str(self._web), "FLOWER_PORT": str(self._flower)}
        path = f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"
        hidden = {"NO_PROXY": "localhost", "PATH": path, "COLUMNS": "100"}
        self._env = {**os.environ, **ports, **hidden}
        self._number = 0

    def run(self, step: Step) -> str:
        """Run a step's commands, and return what they print; a server's until it is ready."""
        self._number += 1
        commands = step.commands.replace(":8000", f":{self._web}")
        commands = commands.replace(":5555", f":{self._flower}")
        log = self._folder / f"step-{self._number}.log"
        if step.server:
            return self._start(commands, _SERVERS[step.server], log)
        with log.open("w") as output:
            subprocess.run(
                [_BASH, "-e", "-c", f"{commands}wait"],
                cwd=self._folder,
                env=self._env,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=200,
                check=False,
            )
        return log.read_text()

    def _start(self, commands: str, ready: str, log: Path) -> str:
        command = [_BASH, "-c", f"cd {shlex.quote(str(self._folder))}; {commands.strip()}"]
        server = self._stack.enter_context(ManagedProcess(command, log, env=self._env))
        own = re.search(r"--logfile=(\S+)", commands)
        said = self._folder / own[1] if own else log

        def why_not_ready() -> str:
            text = said.read_text() if said.exists() else ""
            return "" if re.search(ready, text, re.MULTILINE) else "it has not said so"

        wait_until(why_not_ready, [server], what=commands, timeout=120)
        self._env |= dict(re.findall(r"^ *export (\w+)='(.*)'", log.read_text(), re.MULTILINE))
        return log.read_text()


_THOROUGH = pytest.mark.thorough("a tutorial's commands from its first to its last")


@_THOROUGH
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("redis_server")
def test_the_commands_print_what_the_page_shows(tmp_path: Path):
    """Each command runs in the page's order, and prints the lines that the page shows."""
    pytest.importorskip("transformers")
    write_files(PAGE, tmp_path)
    missing = {}
    with ExitStack() as stack:
        session = Session(tmp_path, stack)
        for step in steps():
            printed = session.run(step)
            lines = masked(printed)
            if lost := [line for line in masked(step.shown) if line not in lines]:
                missing[step.commands] = (lost, printed)

    assert {} == missing


def test_the_page_starts_all_servers():
    """The session above starts Redis, the worker, the web server and Flower."""
    assert list(_SERVERS) == [step.server for step in steps() if step.server]


@_THOROUGH
@pytest.mark.timeout(300)
def test_the_install_command_installs(tmp_path: Path):
    """The page's first commands make an environment with the package and no unknown extra."""
    first = next(code for kind, code in _FENCE.findall(PAGE.read_text()) if kind == "console")
    commands = first.replace("python3", sys.executable)
    commands = commands.replace("/path/to/celery-batch", str(ROOT))
    show = "python -c 'import celery_batch; print(celery_batch.__file__)'"
    ran = subprocess.run(
        [_BASH, "-e", "-c", f"{commands}\n{show}"],
        cwd=tmp_path,
        env={**os.environ, **_OFFLINE},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "does not provide the extra" not in ran.stderr
    assert str(tmp_path / "venv") in ran.stdout.splitlines()[-1]
