"""``celery batch bench`` with a real broker and worker."""

from __future__ import annotations

import json
import os

from tests.services.forked import run
from tests.services.setup import CELERY

COMMAND = (CELERY, "-A", "tests.apps.tasks", "batch", "bench")


def offered(setup, *options):
    """Run the command to its end."""
    return run([*COMMAND, *options], env=os.environ | setup.environment, timeout=110)


def test_a_worker_answers_under_load(setup):
    """Every request has an answer, batches form, and no result is left in Redis."""
    setup.worker("-c", "1")
    options = ("--rate", "20,60", "--duration", "3", "--timeout", "60", "--input", "3", "--json")
    done = offered(setup, "shop.double", *options)
    few, many = json.loads(done.stdout)["rates"]

    assert done.returncode == 0, done.stderr
    assert [(60, 60, {}), (180, 180, {})] == [
        (each["requests"], each["answered"], each["errors"]) for each in (few, many)
    ]
    assert 0 < few["p50"] <= few["p90"] <= few["p99"] <= few["max"] < 60
    assert 0 < few["achieved_rate"] <= 20
    assert 1 < many["batch_size"] <= 16
    with setup.app.backend.client as client:
        assert not client.keys("celery-task-meta-*")


def test_errors_and_waiting_are_measured(setup):
    """A worker that does not exist is named at once; what fails is counted by its kind."""
    nobody = offered(setup, "shop.clerk", "--rate", "5", "--timeout", "5", "--input", "1")
    setup.worker("-c", "1", "-Q", "counter")
    mixed = ("--input", '"good"', "--input", '"bad"')
    options = ("--rate", "20", "--duration", "2", "--timeout", "60", "--json", *mixed)
    done = offered(setup, "shop.clerk", *options)

    assert nobody.returncode == 1
    assert "none reads its queue 'counter'; start one with" in nobody.stderr
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["rates"]
    assert {"ValueError": 40 - found["answered"]} == found["errors"]
    assert {"ValueError": "cannot"} == found["messages"]
    assert 0 < found["answered"] < 40
