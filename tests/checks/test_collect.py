"""What is read from an app: its tasks, its settings, and what is wrong with them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from celery import Celery

from celery_batch import BatchTask
from celery_batch.checks.collect import devices_of, pool_of, trouble_of
from celery_batch.checks.collect_servers import cache_of
from celery_batch.processes.redis_server import RedisServer
from tests.services.ports import quiet_port


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


def test_pools_by_their_classes_are_known():
    """A pool may be named by its class."""
    assert "prefork" == pool_of(app_with(worker_pool="celery.concurrency.prefork:TaskPool"))
    assert "solo" == pool_of(app_with(worker_pool="solo"))


@pytest.mark.parametrize(
    ("padding_row", "trouble"),
    [
        ("long", "p.padding_row: must have a cost that items may have: p: this item costs 4"),
        ("new", ""),
        (lambda: "long", ""),  # which a worker finds out
    ],
    ids=["long", "short", "function"],
)
def test_a_padding_row_that_costs_more_than_an_item_is_trouble(padding_row, trouble):
    """Each call that it fills up would fail."""
    app = app_with()

    @app.task(base=BatchTask, name="p", shared=False, cost="x", max_item_cost=3,
              batch_sizes=(1, 4), padding_row=padding_row)  # fmt: skip
    def padded(x):
        return x

    assert trouble_of(app)[: len(trouble) or None] == trouble


def test_what_cannot_be_imported_is_trouble():
    """A module that is missing, a misspelt setting: each is one sentence."""
    missing = trouble_of(app_with(include=["no.such.module"]))
    misspelt = trouble_of(app_with(batch_max_wiat=1))

    assert "cannot be imported: No module named 'no'." in missing
    assert "batch_max_wiat: no such setting; did you mean batch_max_wait?" == misspelt


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def broken(:", r"SyntaxError: .*flawed\.py, line 1"),
        ("\nimport os; os.environ['NOT_SET_ANYWHERE']", r"KeyError: .*flawed\.py, line 2"),
        ("raise SystemExit('not here')", r"SystemExit: not here .*flawed\.py, line 1"),
    ],
)
def test_a_module_that_raises_is_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, words: str
):
    """Any error that an included module raises is shown with its type and its place."""
    (tmp_path / "flawed.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    trouble = trouble_of(app_with(include=["flawed"]))

    assert re.search(f"The app's tasks cannot be imported: {words}", trouble)


def test_nothing_is_wrong_with_a_sound_app():
    """Then there is no trouble."""
    assert "" == trouble_of(app_with())


def test_devices_are_read():
    """Where the settings are wrong, they are not known."""
    assert ("cuda:0", "cuda:1") == devices_of(app_with(batch_devices="cuda:0, cuda:1"))
    assert devices_of(app_with(batch_nothing=1)) is None


def test_without_a_redis_for_answers_there_is_no_cache():
    """As the worker says it; without a task that has a cache nothing is asked."""
    app = app_with(result_backend="cache+memory://")
    found = cache_of(app, ["t"])

    assert found is not None
    assert "none" == found.kind
    assert "t.cache_ttl: answers are kept in Redis" in found.error
    assert cache_of(app, []) is None


def test_a_cache_at_which_nobody_listens_is_found(redis_server: RedisServer):
    """The setting names another server than the results', which is asked."""
    away = cache_of(app_with(batch_cache_url=f"redis://127.0.0.1:{quiet_port()}/1"), ["t"])
    there = cache_of(app_with(batch_cache_url=redis_server.url), ["t"])

    assert away is not None
    assert there is not None
    assert away.error
    assert ("redis", "") == (there.kind, there.error)
