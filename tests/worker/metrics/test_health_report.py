"""A worker's health: its file, its messages to systemd, and the probes."""

from __future__ import annotations

import os
import socket
import time

import pytest

from celery_batch.cli.health import main
from celery_batch.processes.managed_process import wait_until
from celery_batch.processes.redis_server import RedisServer, find_redis_server
from celery_batch.worker.metrics.health import HealthReport, HealthState
from tests.conftest import need
from tests.services.setup import open_setup

#: No process has it: Linux' highest is below.
NO_PID = 2**22 + 1


@pytest.fixture
def manager(tmp_path):
    """A socket as systemd has one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        yield manager


def test_file_has_the_last_state(tmp_path):
    """The last report can be read, with the process and the time."""
    file = tmp_path / "health"
    report = HealthReport(file)
    report.enter("starting")
    first = HealthState.read(file)
    report.beat()
    second = HealthState.read(file)

    assert ("starting", os.getpid()) == (first.state, first.pid)
    assert ("ready", os.getpid()) == (second.state, second.pid)
    assert [file] == list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("state", "age", "ready", "alive"),
    [
        ("ready", 1.0, True, True),
        ("ready", 20.0, False, True),
        ("ready", 300.0, False, False),
        ("drained", 1.0, False, True),
        ("drained", 300.0, False, False),
        ("starting", 300.0, False, True),
        ("connecting", 300.0, False, True),
        ("stopping", 300.0, False, True),
    ],
)
def test_ready_and_alive(state, age, ready, alive):
    """Only a loop that beats is ready; only one that should beat and does not is not alive."""
    found = HealthState(state, os.getpid(), 1000.0)

    assert ready is not bool(found.why_not_ready(1000.0 + age))
    assert alive is not bool(found.why_not_alive(1000.0 + age))


def test_dead_process_is_not_alive():
    """The last report of a killed worker does not keep it alive."""
    assert "has ended" in HealthState("ready", NO_PID, 1000.0).why_not_alive(1000.0)


@pytest.mark.parametrize("text", ["", "ready", "ready x 1.0", "ready 1 y", "a b c d"])
def test_malformed_files_are_no_state(tmp_path, text):
    """A malformed file is treated like none."""
    (tmp_path / "health").write_text(text)

    assert HealthState.read(tmp_path / "health") is None
    assert HealthState.read(tmp_path / "none") is None


def test_messages_to_systemd(manager, tmp_path):
    """Systemd gets readiness once, each beat, and a long timeout while no loop runs."""
    report = HealthReport(None, str(tmp_path / "notify"), watchdog=60_000_000)
    report.enter("starting")
    report.beat()
    report.beat()
    report.enter("connecting")
    report.beat()
    report.enter("stopping")
    messages = [manager.recv(1000).decode().split("\n") for _ in range(6)]
    no_watchdog = f"WATCHDOG_USEC={7 * 24 * 3600 * 1_000_000}"
    ready = ["READY=1", "STATUS=Takes tasks.", "WATCHDOG_USEC=60000000", "WATCHDOG=1"]

    assert [
        ["STATUS=The worker is starting."],
        ready,
        ["WATCHDOG=1"],
        ["STATUS=The worker is connecting.", no_watchdog],
        ready,
        ["STATUS=The worker is stopping.", "STOPPING=1", no_watchdog],
    ] == messages


def test_drained_worker_is_alive_and_not_ready(manager, tmp_path, capsys):
    """Probes and systemd get the state and its end."""
    report = HealthReport(tmp_path / "health", str(tmp_path / "notify"))
    report.beat()
    report.beat(drained=True)
    codes = [main([str(tmp_path / "health")]), main(["--live", str(tmp_path / "health")])]
    report.beat()
    messages = [manager.recv(1000).decode().split("\n") for _ in range(3)]

    assert [1, 0] == codes
    assert ["the worker is drained", "alive"] == capsys.readouterr().out.splitlines()
    assert ["READY=1", "STATUS=Drained: takes no tasks.", "WATCHDOG=1"] == messages[1]
    assert "STATUS=Takes tasks." in messages[2]
    assert 0 == main([str(tmp_path / "health")])


def test_socket_may_have_no_file():
    """Systemd's socket may be an abstract one, whose name begins with an @."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("")  # Linux finds a name
        name = manager.getsockname()[1:].decode()
        manager.settimeout(60)
        HealthReport(None, f"@{name}").beat()

        assert b"READY=1" in manager.recv(1000)


def test_errors_are_logged_once(tmp_path, caplog):
    """A missing folder or socket is logged once."""
    report = HealthReport(tmp_path / "none" / "health", str(tmp_path / "none" / "notify"))
    report.beat()
    report.beat()

    assert 1 == len(caplog.records)


@pytest.mark.parametrize("environ", [{}, {"CELERY_BATCH_HEALTH_FILE": "", "NOTIFY_SOCKET": ""}])
def test_nothing_is_reported_by_default(environ):
    """Without the variables there is no report."""
    assert not HealthReport.from_environ(environ).is_wanted


def test_environment_names_file_and_socket(tmp_path, manager):
    """Our variable names the file, systemd's own its socket."""
    file = tmp_path / "health"
    notify = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "5000000"}
    HealthReport.from_environ({"CELERY_BATCH_HEALTH_FILE": str(file), **notify}).beat()

    assert b"WATCHDOG_USEC=5000000" in manager.recv(1000)
    assert "ready" == HealthState.read(file).state


def test_probe_has_a_code_and_a_line(tmp_path, capsys, monkeypatch):
    """The command's exit code is for orchestrators, its line for people."""
    file = tmp_path / "health"
    monkeypatch.setenv("CELERY_BATCH_HEALTH_FILE", str(file))

    assert (1, f"no worker has written {file}\n") == (main([]), capsys.readouterr().out)
    HealthState("starting", os.getpid(), time.monotonic()).write(file)
    assert (1, "the worker is starting\n") == (main([]), capsys.readouterr().out)
    assert (0, "alive\n") == (main(["--live"]), capsys.readouterr().out)
    HealthState("ready", os.getpid(), time.monotonic()).write(file)
    assert (0, "ready\n") == (main([str(file)]), capsys.readouterr().out)


def test_probe_without_a_file_names_the_variable(capsys, monkeypatch):
    """Without a file the probe says which variable is missing."""
    monkeypatch.delenv("CELERY_BATCH_HEALTH_FILE", raising=False)

    assert 1 == main([])
    assert "CELERY_BATCH_HEALTH_FILE" in capsys.readouterr().out


def test_probe_imports_little(in_python):
    """A probe that is asked every few seconds imports neither Celery nor a broker's client."""
    code = "import sys, celery_batch.cli.health; print(*sys.modules)"

    assert not {"celery", "kombu", "redis", "click"} & set(in_python(code).split())


def test_worker_without_its_broker_is_alive(tmp_path):
    """While Redis is away the worker is not ready, and needs no restart; then it is ready again."""
    need(find_redis_server)
    file = tmp_path / "health"
    (tmp_path / "redis").mkdir(mode=0o700)
    with (
        RedisServer(tmp_path / "redis") as server,
        open_setup(server.url, tmp_path) as setup,
    ):
        worker = setup.launch("--concurrency=1", CELERY_BATCH_HEALTH_FILE=str(file))

        def becomes(state: str) -> None:
            def why_not() -> str:
                found = HealthState.read(file)
                return "" if found and found.state == state else f"{found}"

            wait_until(why_not, [worker.child], what=f"the worker to be {state}", timeout=60)

        becomes("ready")
        server.stop()
        becomes("connecting")
        away = main([str(file)]), main(["--live", str(file)])
        server.start()
        becomes("ready")

    assert (1, 0) == away


def test_worker_reports_its_health(setup, tmp_path):
    """A worker whose log says ready is, and it reports its stop; systemd gets the same."""
    file = tmp_path / "health"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        notify = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "CELERY_BATCH_HEALTH_FILE": str(file)}
        worker = setup.launch("--concurrency=1", **notify)
        first = manager.recv(1000)

        def why_not() -> str:
            return "" if f"{worker.name} ready." in worker.log else "starts"

        wait_until(why_not, [worker.child], what="the worker", timeout=60)
        at_first = HealthState.read(file).why_not_ready(time.monotonic())
        pid = worker.pid
        second = manager.recv(1000)
        worker.stop()
        found = HealthState.read(file)

    assert b"STATUS=The worker is starting." == first
    assert "" == at_first
    assert second.startswith(b"READY=1\n")
    assert ("stopping", pid) == (found.state, found.pid)
    assert "has ended" in found.why_not_alive(time.monotonic())
