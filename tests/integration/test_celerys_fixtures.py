"""Celery's own fixtures for pytest, used as its manual says: the task is made in the test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services.setup import ROOT

#: Plugins that the user's tests do without; the second takes half a second to import.
_WITHOUT = ("-p", "no:cacheprovider", "-p", "no:schemathesis")

#: What a user writes.  `celery_worker.reload` has the worker know of the new task.
TEST = """
import os

import pytest

from celery_batch import BatchTask, Model

pytest_plugins = ("celery.contrib.pytest",)


@pytest.fixture(scope="session")
def celery_config():
    url = os.environ["THEIR_BROKER"]
    if url:
        return {"broker_url": url, "result_backend": url}
    return {"broker_transport_options": {"polling_interval": 0.01}}  # not a second's sleeps


@pytest.fixture(scope="session")
def celery_includes():
    return ["celery.contrib.testing.tasks"]


@pytest.fixture(scope="session")
def celery_worker_parameters():  # on a busy machine
    return {"ping_task_timeout": 60.0, "shutdown_timeout": 60.0}


def test_a_task_of_the_test(celery_app, celery_worker):
    batches = []

    @celery_app.task(base=BatchTask, max_batch_size=8, max_wait=5.0, linger=1.0)
    def square(x):
        batches.append(len(x))
        return [each * each for each in x]

    celery_worker.reload()
    results = square.delay_many(range(16))

    assert [n * n for n in range(16)] == [result.get(timeout=60) for result in results]
    assert 8 == max(batches)


def test_a_model_of_the_next_test(celery_app, celery_worker):
    class Half(Model):
        def load(self, device):
            self.device = device

        def predict(self, batch):
            return [each / 2 for each in batch]

    half = Half.as_task(celery_app, name="their.half")

    @celery_app.task
    def plain(x):
        return x + 1

    celery_worker.reload()

    assert 4 == half.delay(8).get(timeout=60)
    assert 9 == plain.delay(8).get(timeout=60)
    assert 5 == half.delay(10).get(timeout=60)
"""


@pytest.mark.parametrize("transport", ["memory", "redis"])
def test_a_task_that_is_made_in_the_test(
    transport: str, request: pytest.FixtureRequest, tmp_path: Path
):
    """A worker that began without batch tasks answers, and batches, those that come later."""
    (tmp_path / "test_theirs.py").write_text(TEST)
    url = request.getfixturevalue("broker") if transport == "redis" else ""
    command = [sys.executable, "-m", "pytest", "-q", *_WITHOUT, "-p", "no:randomly"]
    done = subprocess.run(
        [*command, str(tmp_path / "test_theirs.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT), "THEIR_BROKER": url},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )

    assert 0 == done.returncode, done.stdout + done.stderr
    assert "2 passed" in done.stdout


#: A model whose weights are missing.
FAILING = """
from celery.contrib.testing.worker import start_worker

from celery_batch import Model

pytest_plugins = ("celery.contrib.pytest",)


class Missing(Model):
    def load(self, device):
        raise OSError("no weights")

    def predict(self, batch):
        return batch


def test_it(celery_app, caplog):
    Missing.as_task(celery_app, name="their.missing")
    with start_worker(celery_app, perform_ping_check=False, shutdown_timeout=60.0):
        pass
    assert "no weights" in caplog.text
"""


def run_tests(folder: Path, program: str) -> str:
    """Run a user's test module in a folder of its own, and return what pytest says."""
    (folder / "test_theirs.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *_WITHOUT, "test_theirs.py"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    return done.stdout + done.stderr


def test_a_worker_that_cannot_start(tmp_path: Path):
    """A test whose worker cannot start goes on, with the reason in its log."""
    assert "1 passed" in run_tests(tmp_path, FAILING)


#: A worker without an event loop, whose timer waits for a request of the next hour.
DELAYED = """
import statistics
import time

import pytest
from celery import shared_task

from celery_batch import BatchTask

pytest_plugins = ("celery.contrib.pytest",)


@shared_task(base=BatchTask, name="their.late")
def late(x):
    return x


@pytest.fixture(scope="session")
def celery_config():
    return {"broker_transport_options": {"polling_interval": 0.01}}


@pytest.fixture(scope="session")
def celery_includes():
    return ["celery.contrib.testing.tasks"]


@pytest.fixture(scope="session")
def celery_worker_parameters():  # on a busy machine
    return {"ping_task_timeout": 60.0, "shutdown_timeout": 60.0}


def took(n):
    began = time.monotonic()
    assert n == late.apply_async((n,), countdown=0.1).get(timeout=60)
    return time.monotonic() - began


def test_it(celery_app, celery_worker):
    late.apply_async((0,), countdown=3600)
    took(0)
    seconds = [took(n) for n in range(7)]
    assert min(seconds) >= 0.1
    assert statistics.median(seconds) < 0.7, seconds
"""


def test_an_eta_is_kept_without_an_event_loop(tmp_path: Path):
    """Celery's timer may sleep for another second otherwise, every time."""
    assert "1 passed" in run_tests(tmp_path, DELAYED)
