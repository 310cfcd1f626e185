"""What is read from an app: its tasks, its settings, and what is wrong with them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from celery import Celery
from kombu import Queue

from celery_batch import BatchTask
from celery_batch.checks.collect_app import conf_of, tasks_of, trouble_of


def app_with(**settings):
    """Return an app with a batch task, a plain one, and these settings."""
    app = Celery("looked at", broker="memory://", set_as_current=False)
    app.conf.update(**settings)

    own = {"shared": False, "base": BatchTask, "max_batch_size": 8}

    @app.task(name="t", soft_time_limit=3, rate_limit="10/s", **own)
    def t(x):
        return x

    @app.task(name="plain", shared=False)
    def plain(x):
        return x

    return app


def task_of(app):
    """Return what is known of its batch task; shared ones of other tests may be there, too."""
    return {task.name: task for task in tasks_of(app)}["t"]


def test_batch_tasks_with_their_options():
    """Options and settings are merged, and plain tasks are left out."""
    app = app_with(batch_max_wait=0.5, task_time_limit=9, task_routes={"t": "gpu"})
    task = task_of(app)

    assert "plain" not in {each.name for each in tasks_of(app)}
    assert () == trouble_of(app)
    assert ("t", "gpu", 8, 0.5) == (task.name, task.queue, task.max_batch_size, task.max_wait)
    assert (9, 3, "10/s") == (task.time_limit, task.soft_time_limit, task.rate_limit)
    assert (True, False, "json") == (task.acks_late, task.ignores_results, task.serializer)
    assert not task.priorities


def test_priorities_of_a_queue():
    """A queue has priorities by the app's setting, or by its own declaration."""
    own = Queue("celery", queue_arguments={"x-max-priority": 10})

    assert task_of(app_with(task_queue_max_priority=10)).priorities
    assert task_of(app_with(task_queues=[own])).priorities
    assert task_of(app_with(task_queues=[Queue("celery", max_priority=5)])).priorities


def test_quorum_queues_and_pools_by_their_classes_are_known():
    """A queue's kind is read from its declaration, and a pool may be named by its class."""
    own = Queue("celery", queue_arguments={"x-queue-type": "quorum"})

    assert task_of(app_with(task_queues=[own])).is_quorum
    assert not task_of(app_with()).is_quorum
    assert "prefork" == conf_of(app_with(worker_pool="celery.concurrency.prefork:TaskPool")).pool


def test_what_cannot_be_imported_is_trouble():
    """A module that is missing, a misspelt setting: each is told in one sentence."""
    (missing,) = trouble_of(app_with(include=["no.such.module"]))
    (misspelt,) = trouble_of(app_with(batch_max_wiat=1))

    assert "cannot be imported: No module named 'no'." in missing
    assert "batch_max_wiat: no such setting; did you mean batch_max_wait?" == misspelt


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("def broken(:", r"SyntaxError: .*flawed\.py, line 1"),
        ("\nimport os; os.environ['NOT_SET_ANYWHERE']", r"KeyError: .*flawed\.py, line 2"),
        ("raise SystemExit('not here')", r"SystemExit: not here .*flawed\.py, line 1"),
    ],
)
def test_a_module_that_raises_is_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, told: str
):
    """Whatever an included module raises is told with its kind and its place."""
    (tmp_path / "flawed.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    (trouble,) = trouble_of(app_with(include=["flawed"]))

    assert re.search(f"The app's tasks cannot be imported: {told}", trouble)


def test_settings_are_read():
    """Settings come as plain values, times in seconds."""
    conf = conf_of(app_with(worker_pool="solo", result_expires=600, batch_devices="cuda:0, cuda:1"))

    assert ("solo", 600, ("cuda:0", "cuda:1")) == (conf.pool, conf.result_expires, conf.devices)
    assert 86400.0 == conf_of(app_with()).result_expires
    assert conf_of(app_with(batch_nothing=1)).devices is None
