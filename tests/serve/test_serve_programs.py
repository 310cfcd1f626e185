"""What supervisor is told to run, and what is read from it."""

from __future__ import annotations

from configparser import ConfigParser
from pathlib import Path

import pytest
from celery.exceptions import TaskRevokedError

from celery_batch.errors import ConfigurationError, LoadFailed, MessageTooLarge
from celery_batch.serve.config import ServeConfig
from celery_batch.serve.programs import Program, environment, programs, supervisor_conf
from celery_batch.serve.refusals import refusal_of
from celery_batch.serve.supervision import Health, SupervisorAway, health, table

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
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    config = ServeConfig("H", ("cpu",), 4, queue="q", env={"A": "file"})

    env = environment(config, [Path("/here")], {"A": "shell", "PYTHONPATH": "/there"})

    assert ("2", "file", "/here:/there") == (env["OMP_NUM_THREADS"], env["A"], env["PYTHONPATH"])
    told = ServeConfig("H", env={"OMP_NUM_THREADS": "3"})
    assert "3" == environment(told, [], {"OMP_NUM_THREADS": "5"})["OMP_NUM_THREADS"]


def test_a_supervisor_that_is_away_is_named(tmp_path):
    """Not a traceback of sockets."""
    with pytest.raises(SupervisorAway, match="supervisor does not answer"):
        health([], tmp_path)


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


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (ValueError("no face"), 422, "no face"),
        (TypeError("x" * 600), 422, "x" * 500 + "…"),
        (MessageTooLarge("17 MB"), 413, "17 MB"),
        (LoadFailed("secret path"), 503, "The model could not be loaded or warmed up."),
        (ConfigurationError("secret"), 500, "A setting or task option is wrong."),
        (TaskRevokedError("expired"), 503, "the request was not served"),
        (KeyError("secret"), 500, "the handle failed"),
    ],
)
def test_a_client_hears_what_is_meant_for_it(error, status, words):
    """Its own mistakes in full, ours by their kind."""
    refusal = refusal_of(error, "id")

    assert (status, words, "id") == (refusal.status, str(refusal), refusal.task_id)
