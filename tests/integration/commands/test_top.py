"""``celery batch top`` beside a loaded worker, on a terminal and in a pipe."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from celery_batch.processes.managed_process import ManagedProcess
from tests.integration.commands.test_check import OLD
from tests.services.forked import run
from tests.services.setup import CELERY, environment_of
from tests.services.shared_setup import eventually
from tests.services.terminal import Terminal

COMMAND = (CELERY, "-A", "tests.apps.tasks", "batch", "top")

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "check-and-top.md"


def documented_keys():
    """Return the keys of the page's three tables of `--json`: of the object, a task, a worker."""
    tables = PAGE.read_text().split("### As JSON")[1].split("| key")[1:]
    first_cells = [re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for table in tables]
    return [{*re.findall(r"`(\w+)`", " ".join(cells))} for cells in first_cells]


@pytest.fixture
def load(setup):
    """Keep a worker busy, from a thread, until the test ends."""
    stop = threading.Event()

    def send():
        while not stop.wait(0.1):
            setup.double.delay_many(range(20))

    thread = threading.Thread(target=send)
    thread.start()
    yield
    stop.set()
    thread.join()


@pytest.mark.usefixtures("load")
def test_a_person_watches(setup):
    """On a terminal the frame comes again and again, with rates, until Ctrl-C."""
    worker = setup.worker("-c", "1")
    env = {**os.environ, **setup.environment}
    with Terminal([*COMMAND, "--interval", "0.5"], env=env) as terminal:
        sizes = lambda text: "sizes of shop.double" in text and "9 to 16" in text  # noqa: E731
        terminal.read_until(sizes, timeout=90)
        terminal.read_until(lambda text: text.count("celery batch top") > 3)
        terminal.process.send_signal(signal.SIGINT)
        code = terminal.read_to_the_end()

    assert 0 == code
    assert worker.name in terminal.text
    assert terminal.raw.index("\x1b[?1049h") < terminal.raw.index("\x1b[?1049l")  # and back


@pytest.mark.usefixtures("load")
def test_a_script_asks_once(setup):
    """``--once`` prints one plain frame, with rates, and ends."""
    worker = setup.worker("-c", "1")

    def answered():
        done = run([*COMMAND, "--once", "--interval", "2"], env=os.environ | setup.environment)
        done.check_returncode()
        return done.stdout if "sizes of shop.double" in done.stdout else None

    shown = eventually(answered, "two answers of the worker's in time", timeout=90)
    lines = shown.splitlines()
    task = next(line.split() for line in lines if line.startswith("shop.double"))

    assert "\x1b" not in shown
    assert "1" == task[1]
    assert float(task[task.index("of") - 3].replace(",", "")) > 0
    assert any(line.startswith(worker.name) for line in lines)
    assert re.search(r"messages in the broker: .*\bcelery \d", shown)


@pytest.mark.usefixtures("load")
def test_a_script_reads_json(setup):
    """``--json`` prints one object, with the keys of its page and the numbers of a worker."""
    worker = setup.worker("-c", "1")

    def answered():
        done = run([*COMMAND, "--json", "--interval", "2"], env=os.environ | setup.environment)
        done.check_returncode()
        found = json.loads(done.stdout)
        return found if any(task["batch_size"] for task in found["tasks"]) else None

    found = eventually(answered, "two answers of the worker's in time", timeout=90)
    tasks = {task["name"]: task for task in found["tasks"]}
    task, (server,) = tasks["shop.double"], found["workers"]

    assert documented_keys() == [{*found}, {*task}, {*server}]
    assert abs(time.time() - found["time"]) < 90
    assert not found["error"]
    assert task["rows_per_second"] > 0
    assert task["messages"] >= 0
    assert sum(task["batch_sizes"].values()) > 0
    assert 0 < task["model_seconds"] < 10
    assert worker.name == server["name"]
    assert server["processes"] == 1
    assert 0 <= server["busy"] <= 1


def test_a_worker_without_celery_batch_is_not_troubled(setup, tmp_path):
    """It hears no command that it does not know, of `top` or of `tune --record`."""
    worker, log = setup.worker("-c", "1"), tmp_path / "old.log"
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    old = ManagedProcess([sys.executable, "-c", OLD.format(url=setup.url)], log, env=env)
    frames = [*COMMAND, "--interval", "0.2"]
    try:
        eventually(lambda: " ready." in log.read_text(), "the other worker", timeout=90)
        with subprocess.Popen(
            frames, env=os.environ | setup.environment, stdout=subprocess.PIPE, text=True
        ) as process:
            seen = iter(process.stdout.readline, "")
            shown = []
            while len(shown) < 200 or not any(line.startswith(worker.name) for line in shown):
                shown.append(next(seen))
            process.terminate()
            process.stdout.read()
        record = (CELERY, "-A", "tests.apps.tasks", "batch", "tune", "shop.double")
        options = ("--record", str(tmp_path / "trace"), "--seconds", "1")
        run([*record, *options], env=os.environ | setup.environment)
    finally:
        old.stop(grace=10)

    assert any(line.startswith(worker.name) for line in shown)
    assert not any(line.startswith("old@") for line in shown)
    assert "Traceback" not in log.read_text()


def test_the_broker_is_away():
    """Without a broker it says so and goes on looking; in a pipe frame follows frame."""
    env = {**os.environ, **environment_of("redis://:secret@127.0.0.1:1/0")}
    command = [*COMMAND, "--interval", "0.1"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        seen = 0
        for line in process.stdout:
            assert "secret" not in line
            seen += "The broker does not answer" in line
            if seen == 2:
                break
        process.terminate()
        process.stdout.read()

    assert 0 == process.returncode


@pytest.mark.parametrize("option", ["--once", "--json"])
def test_a_script_hears_that_the_broker_is_away(option):
    """It ends with 1 then, and promises no further look."""
    env = {**os.environ, **environment_of("redis://:secret@127.0.0.1:1/0")}
    done = run([*COMMAND, option, "--interval", "0.1"], env=env, timeout=120)
    is_json = option == "--json"

    assert 1 == done.returncode
    assert json.loads(done.stdout)["error"] if is_json else "does not answer" in done.stdout
    assert "asked again" not in done.stdout
    assert "secret" not in done.stdout
