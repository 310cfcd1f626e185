"""The systemd units: what systemd says of them, and their commands, run as systemd would."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from celery_batch.processes.managed_process import ManagedProcess
from tests.conftest import ROOT
from tests.deploy.files.page import shown
from tests.deploy.files.units import HOME, UNITS, Unit
from tests.services.servers.ports import quiet_port

WORKER = "celery-batch@.service"
WEB = "celery-batch-web.service"
BIN = Path(sys.executable).parent


@pytest.fixture
def analyze() -> str:
    """Systemd's own linter."""
    program = shutil.which("systemd-analyze")
    if program is None:
        assert os.environ.get("CI") != "true", "apt install systemd"
        pytest.skip("systemd-analyze is not installed")
    return program


@pytest.fixture
def units(tmp_path) -> Path:
    """The units in a folder, with programs that are there."""
    for file in UNITS.iterdir():
        text = file.read_text().replace(f"{HOME}/venv/bin", str(BIN))
        (tmp_path / file.name).write_text(text)
    return tmp_path


class Manager:
    """systemd, as far as a service of the kind `notify` sees it."""

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "notify")
        self._folder = folder
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address)
        self._socket.settimeout(90)
        self._children: list[ManagedProcess] = []

    def start(self, unit: Unit, given: dict[str, str]) -> psutil.Process:
        """Start a unit's command with what its files hold; return its main process."""
        watchdog = unit.all("WatchdogSec")
        own = {"WATCHDOG_USEC": f"{watchdog[0]}000000"} if watchdog else {}
        environ = {**unit.environment(given), "NOTIFY_SOCKET": self.address, **own}
        words = [
            word.replace(f"{HOME}/venv/bin", str(BIN))
            for word in unit.command("ExecStart", environ)
        ]
        environ["PATH"] = "/usr/bin:/bin"
        at_home = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', str(ROOT), *words]
        child = ManagedProcess(at_home, self._folder / "unit.log", env=environ)
        self._children.append(child)
        self.hear("READY=1")
        (process,) = psutil.Process(child.pid).children()
        return process

    def hear(self, wanted: str) -> list[str]:
        """Return when a service has said something, with all that it said at once."""
        while True:
            said = self._socket.recv(10_000).decode().split("\n")
            if wanted in said:
                return said

    def stop(self, unit: Unit, process: psutil.Process) -> int | None:
        """Stop a service as the unit says; return its exit code."""
        process.terminate()
        (child,) = self._children
        assert child.wait(float(unit.one("TimeoutStopSec"))), child.tail()
        return child.exit_code

    def close(self) -> None:
        """End what is left."""
        for child in self._children:
            child.stop()
        self._socket.close()


@pytest.fixture
def manager(tmp_path) -> Iterator[Manager]:
    """A manager, which ends what it has started."""
    manager = Manager(tmp_path)
    yield manager
    manager.close()


def test_units_are_what_systemd_asks_for(analyze, units):
    """Systemd finds no unknown key, no wrong value and no missing program in any of them."""
    files = sorted(str(file) for file in units.glob("celery-batch*"))
    done = subprocess.run([analyze, "verify", *files], capture_output=True, text=True, check=False)

    assert (0, "") == (done.returncode, done.stderr)
    assert 3 == len(files)


def test_documented_unit_is_what_systemd_asks_for(analyze, tmp_path):
    """Systemd finds no fault in the unit for an app of one's own that the page shows."""
    unit = shown("systemd", "ini")
    name = re.search(r"/([\w-]+\.service)\n", unit)[1]
    (tmp_path / name).write_text(unit.replace("/srv/tasks/venv/bin", str(BIN)))
    command = [analyze, "verify", str(tmp_path / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (0, "") == (done.returncode, done.stderr)


@pytest.mark.parametrize(("name", "most"), [(WORKER, 2.5), (WEB, 1.5)])
def test_units_may_do_little(analyze, units, name, most):
    """Systemd's own measure of what a service could do to the machine, from 0 to 10, is low."""
    file = units / name.replace("@", "@0")
    if not file.exists():
        (units / name).rename(file)
    command = [analyze, "security", "--offline=yes", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    (level,) = re.findall(r"exposure level for \S+: ([\d.]+)", done.stdout)

    assert float(level) <= most


def test_worker_ends_before_it_is_killed():
    """The longest batch ends within the time that systemd gives, and its processes are not hit."""
    unit = Unit(WORKER, "0")
    (limit,) = re.findall(r"--time-limit=(\d+)", unit.one("ExecStart"))

    assert int(limit) + 5 < int(unit.one("TimeoutStopSec"))
    assert "mixed" == unit.one("KillMode")
    assert "continue" == unit.one("OOMPolicy")


@pytest.mark.parametrize("instance", ["0", "11", "MIG-5c-8"])
def test_instance_names_its_device(instance):
    """What stands behind the @ is the device that the worker sees, and part of its name."""
    unit = Unit(WORKER, instance)
    words = unit.command("ExecStart", {"CELERY_APP": "x"})

    assert instance == unit.environment({})["CUDA_VISIBLE_DEVICES"]
    assert f"celery-{instance}@%h" == words[words.index("-n") + 1]


def test_no_unit_needs_a_shell():
    """Each unit starts its program itself."""
    for name in (WORKER, WEB):
        assert Unit(name).one("ExecStart").startswith(f"{HOME}/venv/bin/")


def variables(name: str) -> dict[str, str]:
    """Return what a file of variables holds."""
    lines = (UNITS / name).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_worker_runs_as_its_unit_says(manager, setup):
    """It reports that it takes tasks, serves the watchdog, answers, and ends by SIGTERM."""
    unit = Unit(WORKER, "cpu")
    files = {**setup.environment, "CELERY_APP": setup.module.__name__, **variables("cpu.conf")}
    process = manager.start(unit, files)
    answer = setup.double.delay(21).get(timeout=60)
    manager.hear("WATCHDOG=1")
    (name,) = setup.app.control.ping(timeout=60.0, limit=1)[0]
    seen = process.environ()["CUDA_VISIBLE_DEVICES"]
    code = manager.stop(unit, process)
    manager.hear("STOPPING=1")

    assert 42 == answer
    assert f"celery-cpu@{socket.gethostname()}" == name
    assert "" == seen
    assert 0 == code


def test_web_runs_as_its_unit_says(manager, broker):
    """It reports when it serves, answers, and ends by SIGTERM."""
    unit = Unit(WEB)
    port = quiet_port()
    files = {"CELERY_BROKER_URL": broker, "CELERY_RESULT_BACKEND": broker, "PYTHONPATH": str(ROOT)}
    unit.settings["Service"]["ExecStart"] = [unit.one("ExecStart").replace(":8000", f":{port}")]
    process = manager.start(unit, files)
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        answer = client.recv(100)
    began = time.monotonic()
    code = manager.stop(unit, process)

    assert answer.startswith(b"HTTP/1.0 200")
    assert 0 == code
    assert time.monotonic() - began < int(unit.one("TimeoutStopSec"))
