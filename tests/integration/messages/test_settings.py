"""Prefetch needs no thought, and settings that would limit batches are told or lifted."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.conftest import Setup
from tests.services.forked import run
from tests.services.setup import CELERY
from tests.services.shared_setup import eventually


def test_prefetch_is_sized_for_the_batches(setup: Setup):
    """A worker holds what it can put to use: running, ready and gathering."""
    worker = setup.worker("-c", "2")
    sizes = [task["max_batch_size"] for task in worker.status().values()]

    assert 2 * 3 * sum(sizes) == worker.stats()["prefetch_count"]


def test_disabled_prefetch_still_fills_batches(setup: Setup):
    """With --disable-prefetch a worker holds batches' worth, not one task per process."""
    worker = setup.worker("-c", "1", "--disable-prefetch")
    results = [setup.slow.delay(n) for n in range(64)]
    for result in results:
        result.get(timeout=30)

    assert "full" in worker.status()["shop.slow"]["reasons"]
    assert "worker_disable_prefetch would limit batches" in worker.log


@pytest.mark.parametrize(
    ("conf", "warning"),
    [
        ({"worker_eta_task_limit": 10}, "worker_eta_task_limit=10 limits batches"),
        ({"worker_prefetch_multiplier": 0}, "worker_prefetch_multiplier=0 lets one worker take"),
        (
            {"batch_max_wait": 10},
            "shop.timed: max_wait=10 is in seconds; if you mean milliseconds, write 0.01",
        ),
    ],
    ids=["eta limit", "no prefetch limit", "milliseconds"],
)
def test_settings_of_doubtful_use_are_told(setup: Setup, conf: dict[str, int], warning: str):
    """The worker starts and says which setting to change, and to what."""
    worker = setup.worker("-c", "1", conf=conf)

    assert warning in worker.log


def test_a_forgotten_base_class_is_told(setup: Setup):
    """The worker names the ordinary task and the options that it does not read."""
    worker = setup.worker("-c", "1", TESTS_WITHOUT_BASE="yes")

    assert "shop.forgotten: max_batch_size, max_wait in an ordinary task" in worker.log
    assert "define it with base=BatchTask, or leave the options out" in worker.log


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"batch_max_sise": 3}, "batch_max_sise: no such setting; did you mean batch_max_size?"),
        ({"batch_devices": "gpu0"}, "'gpu0' is no device"),
        ({"batch_max_size": 0}, "max_batch_size: must be a whole number of at least 1, got 0"),
        ({"batch_payload_store": "/var"}, "batch_payload_store: must be a URL such as"),
    ],
    ids=["misspelt", "device", "size", "store"],
)
def test_wrong_settings_are_a_failed_start(setup: Setup, conf: dict[str, object], message: str):
    """The worker ends with an error that names the setting, and without a trace of calls."""
    worker = setup.launch("-c", "1", conf=conf)

    assert worker.child.wait(60)
    assert 1 == worker.child.exit_code
    assert message in worker.log
    assert "Traceback" not in worker.log


def test_files_that_have_expired_are_deleted(setup: Setup, tmp_path: Path):
    """A worker does so that has never had a payload itself, such as those of large results."""
    file = tmp_path / "celery-batch-payload-a-1"
    file.touch()
    os.utime(file, (1, 1))
    conf = {"batch_payload_store": f"file://{tmp_path}", "batch_payload_expires": 3}
    setup.worker("-c", "1", conf=conf)

    eventually(lambda: not file.exists(), "the end of the file")
    assert [] == [*tmp_path.glob("celery-batch-payload-*")]


@pytest.mark.parametrize("command", [["worker"], ["beat"], ["batch", "top", "--once"]])
def test_a_misspelt_setting_is_one_line(setup: Setup, command: list[str]):
    """Whichever command binds the tasks first, it says no more than what is wrong."""
    conf = json.dumps({"batch_max_wiat": 0.1})
    environment = {**os.environ, **setup.environment, "TESTS_CONF": conf}
    done = run([CELERY, "-A", setup.module.__name__, *command], env=environment)

    assert 1 == done.returncode
    assert "Error: batch_max_wiat: no such setting; did you mean batch_max_wait?\n" == done.stderr
