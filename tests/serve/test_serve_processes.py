"""The processes of a served handle: their commands, restarts and status."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from celery_batch.processes import supervisor
from celery_batch.processes.managed_process import wait_until
from celery_batch.serve import processes
from celery_batch.serve.config import ServeConfig
from celery_batch.serve.processes import (
    ProcessStatus,
    ServedProcess,
    environment,
    read_status,
    table,
    write_status,
)

FOLDER = Path("/run/100%")


def test_each_slot_of_each_gpu_has_a_worker():
    """Two GPUs with four processes each are eight workers, and a Redis where none is named."""
    config = ServeConfig("H", ("cuda:0", "cuda:1"), 4, queue="q")
    found = list(processes.processes(config, FOLDER, {}))
    workers = [each for each in found if each.device]

    assert ["redis", "web"] == [each.name for each in found if not each.device]
    assert [f"cuda{gpu}-{slot}" for gpu in (0, 1) for slot in range(4)] == [
        worker.name for worker in workers
    ]
    assert ["cuda:0"] * 4 + ["cuda:1"] * 4 == [worker.device for worker in workers]
    assert 8 == len({worker.node for worker in workers})
    assert all("--concurrency=1" in worker.command for worker in workers)


def test_each_web_worker_is_a_process():
    """One has the plain name; several are numbered."""
    config = ServeConfig("H", broker="redis://h", queue="q", web_workers=2)

    assert ["cpu-0", "web-0", "web-1"] == [
        each.name for each in processes.processes(config, FOLDER, {})
    ]


def test_a_named_broker_is_not_started():
    """Somebody else keeps it alive."""
    config = ServeConfig("H", broker="redis://h", queue="q")

    assert ["cpu-0", "web"] == [each.name for each in processes.processes(config, FOLDER, {})]


def test_the_workers_share_the_cores_unless_configured_otherwise(monkeypatch):
    """As many math threads in each as leave the others some; Env wins."""
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    config = ServeConfig("H", ("cpu",), 4, queue="q", env={"A": "file"})

    env = environment(config, [Path("/here")], {"A": "shell", "PYTHONPATH": "/there"})

    assert ("2", "file", "/here:/there") == (env["OMP_NUM_THREADS"], env["A"], env["PYTHONPATH"])
    other = ServeConfig("H", env={"OMP_NUM_THREADS": "3"})
    assert "3" == environment(other, [], {"OMP_NUM_THREADS": "5"})["OMP_NUM_THREADS"]


@pytest.fixture
def start(tmp_path):
    """Start a Python program as a served process that ends with the test."""
    started = []

    def start(program, device=""):
        command = (sys.executable, "-c", program)
        log = tmp_path / "web.log"
        started.append(ServedProcess("web", command, 30, log, os.environ, device))
        started[-1].check()
        return started[-1]

    yield start
    for each in started:
        if each.process is not None:
            each.process.stop(0)


def until(process, is_so):
    """Check a process until something is so."""

    def ready():
        process.check()
        return "" if is_so() else f"{process.state}: {process.error}"

    wait_until(ready, [], what="the process", timeout=30)


_CRASH = """
import sys
print("[2026: ERROR/ForkPoolWorker-1] Trial.preprocess failed for one request")
print("ValueError: a bad request")
print("[2026: CRITICAL/MainProcess] This worker cannot start: Traceback (most recent call last):")
print("celery_batch.errors.LoadFailed: Trial on cpu: OSError: no weights")
sys.exit(1)
"""


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (_CRASH, "Trial on cpu: OSError: no weights"),
        (
            "import sys; print('ValueError: a bad request'); sys.exit(3)",
            "ValueError: a bad request",
        ),
        ("import sys; sys.exit(3)", "exit code 3"),
        ("print('Error: redis was killed by SIGKILL'); exit(1)", "redis was killed by SIGKILL"),
        ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL"),
        ("import os; os.kill(os.getppid(), 9); os.kill(os.getpid(), 9)", "killed by SIGKILL"),
    ],
    ids=["load", "error", "code", "server killed", "killed", "reaper killed"],
)
def test_the_status_says_why_a_process_has_ended(start, tmp_path, monkeypatch, program, reason):
    """A worker's critical error counts, and not the errors of single requests before it."""
    monkeypatch.setattr(supervisor, "FIRST_PAUSE", 60.0)
    (tmp_path / "web.log").write_text("ValueError: of a process before\n")
    process = start(program)
    until(process, lambda: process.error)

    assert reason == process.error
    assert ("crashing", 0, 0) == (process.state, process.status().pid, process.status().restarts)
    assert process.how_it_ended().startswith(f"web ended while it started: {reason}\n--- web: ")


_LOSES = """
import sys, time
def say(text, end="\\n"):
    print("[2026: ERROR/MainProcess] " + text, end=end, flush=True)
say("Hard time limit (4s) exceeded for New.predict[1]")
say("Process 'ForkPoolWorker-1' pid:7 exited with 'signal 15 (SIGTERM)'")
say("Task New.predict[2] raised unexpected: ValueError('exited with')")
say("Process 'ForkPoolWorker-2' pid:8 exited with 'exitcode 4'")
say("Process 'ForkPoolWorker-3' pid:9 exited with 'signal", end="")
while "go on" not in open("{log}").read():
    time.sleep(0.01)
print(" 9 (SIGKILL)'")
say("Hard time limit (4.5s) exceeded for New.predict[1]")
say("Process 'ForkPoolWorker-4' pid:9 exited with 'signal 15 (SIGTERM)'")
time.sleep(60)
"""


def test_pool_processes_that_a_worker_replaces_are_counted(start, tmp_path):
    """Each counts once, with the time limit if that has ended it."""
    worker = start(_LOSES.replace("{log}", str(tmp_path / "go")), device="cpu")
    (tmp_path / "go").touch()
    until(worker, lambda: worker.status().restarts == 2)
    first = worker.status().error
    (tmp_path / "go").write_text("go on")
    until(worker, lambda: worker.status().restarts == 4)

    assert "pool process: exitcode 4" == first
    assert "pool process: Hard time limit (4.5s) exceeded" == worker.status().error
    assert ("starting", "") == (worker.state, worker.error)


def test_the_end_of_a_worker_follows_those_of_its_pool_processes(start, monkeypatch):
    """Where both ended since the last look, the status says why the worker did."""
    monkeypatch.setattr(supervisor, "FIRST_PAUSE", 60.0)
    lost = "[2026: ERROR/MainProcess] Process 'ForkPoolWorker-1' pid:7 exited with 'exitcode 4'"
    end = "[2026: CRITICAL/MainProcess] This worker cannot start: no memory"
    worker = start(f"import sys; print({lost!r}); print({end!r}); sys.exit(3)", device="cpu")
    wait_until(lambda: "" if worker.process.exit_code else "it runs", [], what="end", timeout=30)
    worker.check()

    assert (1, "This worker cannot start: no memory") == (
        worker.status().restarts,
        worker.status().error,
    )


def test_an_error_that_says_all_is_shown_without_the_log(start, monkeypatch):
    """A setting that is wrong needs no more than the worker's one line."""
    monkeypatch.setattr(supervisor, "FIRST_PAUSE", 60.0)
    line = "[2026: CRITICAL/MainProcess] This worker cannot start: Handle: there is no class Trail"
    process = start(f"import sys; print({line!r}); sys.exit(1)")
    until(process, lambda: process.error)

    words = "This worker cannot start: Handle: there is no class Trail"
    assert f"web ended while it started: {words}" == process.how_it_ended()


def test_a_crash_loop_is_shown_and_given_up(start, monkeypatch):
    """One early exit is no loop; after too many of them nothing is started any more."""
    monkeypatch.setattr(supervisor, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr(processes, "_TRIES", 4)
    process = start("import sys; sys.exit(3)")
    states = {(process.starts, process.early_exits): process.state}  # it may end before a look

    def is_given_up():
        states[process.starts, process.early_exits] = process.state
        return process.state == "given up"

    until(process, is_given_up)

    assert ["starting", "starting", "crashing", "crashing", "given up"] == [
        states[each] for each in [(1, 0), (2, 1), (3, 2), (4, 3), (4, 4)]
    ]
    assert 3 == process.status().restarts


def test_a_process_runs_once_it_was_ready_or_is_steady(start, monkeypatch):
    """One that was started since is starting again."""
    monkeypatch.setattr(supervisor, "FIRST_PAUSE", 0.0)
    process = start("import time; time.sleep(600)")
    states = [process.state]
    process.is_ready = True
    states.append(process.state)
    process.process.stop(0)
    process.check()
    states.append(process.state)
    process.started -= supervisor.STEADY
    states.append(process.state)

    assert ["starting", "running", "starting", "running"] == states


def test_a_worker_has_its_device_in_the_environment(start):
    """The environment names it to the worker, and to no other process."""
    program = "import os, sys; sys.exit(os.environ.get('CELERY_BATCH_SERVE_DEVICE') != 'cuda:1')"
    worker, web = start(program, "cuda:1"), start(program)
    until(worker, lambda: worker.error)
    until(web, lambda: web.error)

    assert ("exit code 0", "exit code 1") == (worker.error, web.error)


def test_a_large_log_begins_anew(start, tmp_path, monkeypatch):
    """What it held is kept in a second file, and what the process writes next is in the first."""
    monkeypatch.setattr(processes, "_LARGEST_LOG", 3)
    process = start(
        "import os, time; print('first', flush=True)\n"
        f"while not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.01)\n"
        "print('on', flush=True); time.sleep(600)"
    )
    old = Path(f"{process.log}.1")
    until(process, old.exists)
    (tmp_path / "go").touch()
    until(process, lambda: process.log.read_text() == "on\n")

    assert "first\n" == old.read_text()


def test_what_fails_to_start_is_tried_again(start, monkeypatch, caplog):
    """Neither a removed log nor a machine without memory ends the command."""
    monkeypatch.setattr(supervisor, "FIRST_PAUSE", 0.0)
    process = start("import time; time.sleep(600)")
    process.process.stop(0)
    process.log.unlink()
    working = process._start
    calls = []

    def failing():
        calls.append(1)
        if len(calls) == 1:
            raise OSError(12, "Cannot allocate memory")
        return working()

    monkeypatch.setattr(process, "_start", failing)
    until(process, lambda: process.starts == 2)

    assert "web cannot be started: [Errno 12] Cannot allocate memory" in caplog.text


def test_the_status_is_read_as_it_was_written(tmp_path):
    """A folder without one has none."""
    rows = [ProcessStatus("web", "", "running", 1.5, 2, "killed by SIGKILL", 7)]
    before = read_status(tmp_path)
    write_status(tmp_path, "a title", rows)

    assert (None, ("a title", rows)) == (before, read_status(tmp_path))


def test_the_table_has_a_line_for_each_process():
    """Columns stand under their heads."""
    now = time.time()
    rows = [
        ProcessStatus("cuda0-0", "cuda:0", "crashing", now - 3.5, 2, "KeyError: 'x'", 0),
        ProcessStatus("web", "", "running", now - 3600.5, 0, "", 7),
    ]

    assert [
        "program  device  state     since    restarts  last error",
        "cuda0-0  cuda:0  crashing  0:00:03  2         KeyError: 'x'",
        "web      -       running   1:00:00  0         -",
    ] == table(rows).splitlines()
