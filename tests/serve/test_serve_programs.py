"""What supervisor is told to run, and what is read from it."""

from __future__ import annotations

import os
from configparser import ConfigParser
from pathlib import Path
from socketserver import UnixStreamServer
from threading import Thread
from xmlrpc.client import Fault
from xmlrpc.server import SimpleXMLRPCDispatcher, SimpleXMLRPCRequestHandler

import pytest

from celery_batch.serve.config import ServeConfig
from celery_batch.serve.processes import (
    LOG,
    READY,
    Health,
    Program,
    SupervisorAway,
    environment,
    health,
    programs,
    supervisor_conf,
    table,
)

FOLDER = Path("/run/100%")


def test_each_slot_of_each_gpu_has_a_worker():
    """Two GPUs with four processes each are eight workers, and a Redis where none is named."""
    config = ServeConfig("H", ("cuda:0", "cuda:1"), 4, queue="q")
    found = list(programs(config, FOLDER))
    workers = [program for program in found if program.device]

    assert ["redis", "web"] == [program.name for program in found if not program.device]
    assert [f"cuda{gpu}-{slot}" for gpu in (0, 1) for slot in range(4)] == [
        worker.name for worker in workers
    ]
    assert ["cuda:0"] * 4 + ["cuda:1"] * 4 == [worker.device for worker in workers]
    assert 8 == len({worker.node for worker in workers})
    assert all("--concurrency=1" in worker.command for worker in workers)


def test_each_web_worker_is_a_process():
    """One has the plain name; several are numbered."""
    config = ServeConfig("H", broker="redis://h", queue="q", web_workers=2)

    assert ["cpu-0", "web-0", "web-1"] == [each.name for each in programs(config, FOLDER)]


def test_a_named_broker_is_not_started():
    """Somebody else keeps it alive."""
    config = ServeConfig("H", broker="redis://h", queue="q")

    assert ["cpu-0", "web"] == [program.name for program in programs(config, FOLDER)]


def test_supervisor_is_told_of_each_program():
    """Each is kept by a keeper, pinned to its device, and restarted; percent signs are kept."""
    running = list(programs(ServeConfig("H", ("cuda:1",), queue="q"), FOLDER))
    conf = ConfigParser(interpolation=None)
    conf.read_string(supervisor_conf(running, FOLDER, ["keep", ""]))
    worker = conf["program:cuda1-0"]

    assert worker["command"].startswith("keep '' ")
    assert "q.cuda1-0.9876@%%h" in worker["command"]
    assert 'CELERY_BATCH_SERVE_DEVICE="cuda:1"' == worker["environment"]
    assert "true" == worker["autorestart"]
    assert "/run/100%%/web.log" == conf["program:web"]["stdout_logfile"]
    assert "cuda1-0" == conf["group:workers"]["programs"]
    assert "environment" not in conf["program:web"]


def test_the_workers_share_the_cores_unless_told_otherwise(monkeypatch):
    """As many math threads in each as leave the others some; Env wins."""
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    config = ServeConfig("H", ("cpu",), 4, queue="q", env={"A": "file"})

    env = environment(config, [Path("/here")], {"A": "shell", "PYTHONPATH": "/there"})

    assert ("2", "file", "/here:/there") == (env["OMP_NUM_THREADS"], env["A"], env["PYTHONPATH"])
    told = ServeConfig("H", env={"OMP_NUM_THREADS": "3"})
    assert "3" == environment(told, [], {"OMP_NUM_THREADS": "5"})["OMP_NUM_THREADS"]


class Supervisor(UnixStreamServer, SimpleXMLRPCDispatcher):
    """Answers as supervisor does, with what a test makes of its processes."""

    logRequests = False  # noqa: N815 (the handler's word)

    def __init__(self, folder, infos):
        SimpleXMLRPCDispatcher.__init__(self)
        self.register_function(infos, "supervisor.getAllProcessInfo")
        UnixStreamServer.__init__(self, str(folder / "supervisor.sock"), _Handler)
        Thread(target=self.handle_request, daemon=True).start()


class _Handler(SimpleXMLRPCRequestHandler):
    rpc_paths = ("/RPC2",)
    disable_nagle_algorithm = False  # it is no TCP


def test_a_supervisor_that_is_away_is_named(tmp_path):
    """Not a traceback of sockets."""
    with pytest.raises(SupervisorAway, match="nothing runs from here"):
        health([], tmp_path)


def test_a_supervisor_that_ends_is_named(tmp_path):
    """Not by a number of its own."""

    def infos():
        raise Fault(6, "SHUTDOWN_STATE")

    with Supervisor(tmp_path, infos), pytest.raises(SupervisorAway, match="is being stopped"):
        health([], tmp_path)


_LOG = """=== starts 2026-11-21
[2026: ERROR/ForkPoolWorker-1] Trial.preprocess failed for one request
ValueError: a bad request
=== starts 2026-11-21
[2026: ERROR/ForkPoolWorker-1] Trial.preprocess failed for one request
ValueError: another bad request
[2026: CRITICAL/MainProcess] This worker cannot start: Traceback (most recent call last):
celery_batch.errors.LoadFailed: Trial on cpu: OSError: no weights
=== starts 2026-11-21
[2026: ERROR/ForkPoolWorker-1] Trial.preprocess failed for one request
ValueError: a third bad request
"""


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ("spawned: 'web' with pid 7", ""),
        ("exited: cpu-0 (exit status 1; not expected)", ""),
        ("exited: web (exit status 1; not expected)", "Trial on cpu: OSError: no weights"),
        ("exited: web (exit status 137; not expected)", "killed by SIGKILL"),
        ("exited: web (terminated by SIGTERM; not expected)", "killed by SIGTERM"),
    ],
    ids=["lives", "another", "load", "killed", "keeper killed"],
)
def test_it_is_said_why_a_process_has_ended(tmp_path, told, reason):
    """It is not what it has said of requests that makes a process end."""
    (tmp_path / LOG).write_text(f"2026 INFO {told}\n2026 INFO spawned: 'web' with pid 8\n")
    (tmp_path / "web.log").write_text(_LOG)
    info = {"name": "web", "statename": "RUNNING", "pid": 8, "start": 1, "stop": 0, "now": 9}
    with Supervisor(tmp_path, lambda: [info]):
        (found,) = health([Program("web", (), 30)], tmp_path)

    assert reason == found.error


def test_what_was_seen_to_be_ready_is_running(tmp_path):
    """Supervisor calls a process starting for longer; one that was started since is starting."""
    (tmp_path / LOG).touch()
    infos = [
        {"name": name, "statename": "STARTING", "pid": 8, "start": start, "stop": 0, "now": 1060}
        for name, start in [("web", 1000), ("cpu-0", 1050)]
    ]
    programs = [Program("web", (), 30), Program("cpu-0", (), 20, "cpu")]
    with Supervisor(tmp_path, lambda: infos):
        before = [each.state for each in health(programs, tmp_path)]
    (tmp_path / "supervisor.sock").unlink()
    (tmp_path / READY).touch()
    os.utime(tmp_path / READY, (1030.0, 1030.0))
    with Supervisor(tmp_path, lambda: infos):
        after = [each.state for each in health(programs, tmp_path)]

    assert ["starting", "starting"] == before
    assert ["running", "starting"] == after


def test_the_table_has_a_line_for_each_process():
    """Columns stand under their heads."""
    rows = [
        Health(Program("cuda0-0", (), 20, "cuda:0"), "crashing", 3.9, 2, "KeyError: 'x'", 0),
        Health(Program("web", (), 30), "running", 3600.0, 0, "", 7),
    ]

    assert [
        "program  device  state     since    restarts  last error",
        "cuda0-0  cuda:0  crashing  0:00:03  2         KeyError: 'x'",
        "web      -       running   1:00:00  0         -",
    ] == table(rows).splitlines()
