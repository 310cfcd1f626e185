"""Signs of life: what a worker writes, what systemd hears, what probes make of it."""

from __future__ import annotations

import os
import socket
import time

import pytest

from celery_batch.cli.health import main
from celery_batch.processes.managed_process import wait_until
from celery_batch.processes.redis_server import RedisServer, find_redis_server
from celery_batch.worker.metrics.health import HealthReport, Sign
from tests.conftest import need
from tests.services.shop import open_shop

#: No process has it: Linux' highest is below.
NOBODY = 2**22 + 1


@pytest.fixture
def manager(tmp_path):
    """A socket as systemd has one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        yield manager


def test_file_says_what_was_told_last(tmp_path):
    """What is told can be read, with the process and the time."""
    file = tmp_path / "pulse"
    pulse = HealthReport(file)
    pulse.tell("starting")
    first = Sign.read(file)
    pulse.beat()
    second = Sign.read(file)

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
def test_what_probes_make_of_it(state, age, ready, alive):
    """Only a loop that beats is ready; only one that should beat and does not is dead."""
    sign = Sign(state, os.getpid(), 1000.0)

    assert ready is not bool(sign.why_not_ready(1000.0 + age))
    assert alive is not bool(sign.why_not_alive(1000.0 + age))


def test_dead_process_is_not_alive():
    """What a killed worker has written last does not keep it alive."""
    assert "has ended" in Sign("ready", NOBODY, 1000.0).why_not_alive(1000.0)


@pytest.mark.parametrize("text", ["", "ready", "ready x 1.0", "ready 1 y", "a b c d"])
def test_other_files_are_no_signs(tmp_path, text):
    """A file that is something else is as none."""
    (tmp_path / "pulse").write_text(text)

    assert Sign.read(tmp_path / "pulse") is None
    assert Sign.read(tmp_path / "none") is None


def test_systemd_hears_of_a_life(manager, tmp_path):
    """It hears of readiness once, of each beat, and is to be patient while no loop runs."""
    pulse = HealthReport(None, str(tmp_path / "notify"), watchdog=60_000_000)
    pulse.tell("starting")
    pulse.beat()
    pulse.beat()
    pulse.tell("connecting")
    pulse.beat()
    pulse.tell("stopping")
    heard = [manager.recv(1000).decode().split("\n") for _ in range(6)]
    patience = f"WATCHDOG_USEC={7 * 24 * 3600 * 1_000_000}"
    ready = ["READY=1", "STATUS=Takes tasks.", "WATCHDOG_USEC=60000000", "WATCHDOG=1"]

    assert [
        ["STATUS=The worker is starting."],
        ready,
        ["WATCHDOG=1"],
        ["STATUS=The worker is connecting.", patience],
        ready,
        ["STATUS=The worker is stopping.", "STOPPING=1", patience],
    ] == heard


def test_drained_worker_says_so(manager, tmp_path, capsys):
    """It lives and is not ready; systemd, which started it, hears of it and of its end."""
    pulse = HealthReport(tmp_path / "pulse", str(tmp_path / "notify"))
    pulse.beat()
    pulse.beat(drained=True)
    told = [main([str(tmp_path / "pulse")]), main(["--live", str(tmp_path / "pulse")])]
    pulse.beat()
    heard = [manager.recv(1000).decode().split("\n") for _ in range(3)]

    assert [1, 0] == told
    assert ["the worker is drained", "alive"] == capsys.readouterr().out.splitlines()
    assert ["READY=1", "STATUS=Drained: takes no tasks.", "WATCHDOG=1"] == heard[1]
    assert "STATUS=Takes tasks." in heard[2]
    assert 0 == main([str(tmp_path / "pulse")])


def test_socket_may_have_no_file():
    """Systemd's socket may be an abstract one, whose name begins with an @."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("")  # Linux finds a name
        name = manager.getsockname()[1:].decode()
        manager.settimeout(60)
        HealthReport(None, f"@{name}").beat()

        assert b"READY=1" in manager.recv(1000)


def test_nobody_there_harms_nobody(tmp_path, caplog):
    """A folder or a socket that is not there is told of once."""
    pulse = HealthReport(tmp_path / "none" / "pulse", str(tmp_path / "none" / "notify"))
    pulse.beat()
    pulse.beat()

    assert 1 == len(caplog.records)


@pytest.mark.parametrize("environ", [{}, {"CELERY_BATCH_PULSE": "", "NOTIFY_SOCKET": ""}])
def test_nothing_is_done_unasked(environ):
    """Where nobody looks, no file is written and nobody is told."""
    assert not HealthReport.from_environ(environ).is_wanted


def test_environment_says_whom_to_tell(tmp_path, manager):
    """The variables are ours for the file, and systemd's own."""
    file = tmp_path / "pulse"
    notify = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "5000000"}
    HealthReport.from_environ({"CELERY_BATCH_PULSE": str(file), **notify}).beat()

    assert b"WATCHDOG_USEC=5000000" in manager.recv(1000)
    assert "ready" == Sign.read(file).state


def test_probe_says_how_the_worker_is(tmp_path, capsys, monkeypatch):
    """The command's exit code is for orchestrators, its line for people."""
    file = tmp_path / "pulse"
    monkeypatch.setenv("CELERY_BATCH_PULSE", str(file))

    assert (1, f"no worker has written {file}\n") == (main([]), capsys.readouterr().out)
    Sign("starting", os.getpid(), time.monotonic()).write(file)
    assert (1, "the worker is starting\n") == (main([]), capsys.readouterr().out)
    assert (0, "alive\n") == (main(["--live"]), capsys.readouterr().out)
    Sign("ready", os.getpid(), time.monotonic()).write(file)
    assert (0, "ready\n") == (main([str(file)]), capsys.readouterr().out)


def test_probe_without_a_file_says_what_is_missing(capsys, monkeypatch):
    """Without a name it names the variable."""
    monkeypatch.delenv("CELERY_BATCH_PULSE", raising=False)

    assert 1 == main([])
    assert "CELERY_BATCH_PULSE" in capsys.readouterr().out


def test_probe_imports_little(in_python):
    """A probe that is asked every few seconds imports neither Celery nor a broker's client."""
    code = "import sys, celery_batch.cli.health; print(*sys.modules)"

    assert not {"celery", "kombu", "redis", "click"} & set(in_python(code).split())


def test_worker_without_its_broker_lives(tmp_path):
    """While Redis is away the worker is not ready, and needs no restart; then it is ready again."""
    need(find_redis_server)
    file = tmp_path / "pulse"
    (tmp_path / "redis").mkdir(mode=0o700)
    with (
        RedisServer(tmp_path / "redis") as server,
        open_shop(server.url, tmp_path) as shop,
    ):
        worker = shop.launch("--concurrency=1", CELERY_BATCH_PULSE=str(file))

        def becomes(state: str) -> None:
            def why_not() -> str:
                sign = Sign.read(file)
                return "" if sign and sign.state == state else f"{sign}"

            wait_until(why_not, [worker.child], what=f"the worker to be {state}", timeout=60)

        becomes("ready")
        server.stop()
        becomes("connecting")
        away = main([str(file)]), main(["--live", str(file)])
        server.start()
        becomes("ready")

    assert (1, 0) == away


def test_worker_tells_its_life(shop, tmp_path):
    """A worker is ready when its loop runs, and says when it stops; systemd hears the same."""
    file = tmp_path / "pulse"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        notify = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "CELERY_BATCH_PULSE": str(file)}
        worker = shop.launch("--concurrency=1", **notify)
        first = manager.recv(1000)

        def why_not() -> str:
            sign = Sign.read(file)
            return sign.why_not_ready(time.monotonic()) if sign else "it has not begun"

        wait_until(why_not, [worker.child], what="the worker", timeout=60)
        pid = worker.pid
        second = manager.recv(1000)
        worker.stop()
        sign = Sign.read(file)

    assert b"STATUS=The worker is starting." == first
    assert second.startswith(b"READY=1\n")
    assert ("stopping", pid) == (sign.state, sign.pid)
    assert "has ended" in sign.why_not_alive(time.monotonic())
