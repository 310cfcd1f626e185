"""A misspelt option of a backfill is an error, and not ignored."""

from __future__ import annotations

import asyncio

import pytest
from celery import Celery

from celery_batch import BatchTask
from celery_batch.call_options import check_options


@pytest.fixture
def app():
    """An app on no broker."""
    return Celery("options", set_as_current=False, broker="memory://", backend="cache+memory://")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"windw": 3}, "takes no option 'windw'; did you mean window\\?$"),
        ({"priorty": 3}, "takes no option 'priorty'; did you mean priority\\?$"),
        ({"xyzzy": 3}, "takes no option 'xyzzy'$"),
        ({"task_id": "one"}, "takes no option 'task_id': each call has its own"),
    ],
)
def test_a_misspelt_option_is_refused_at_once(app, options, words):
    """With the name that was meant, before anything is read or sent."""

    @app.task(base=BatchTask)
    def double(number):
        return [2 * n for n in number]

    with pytest.raises(TypeError, match=words):
        double.backfill(iter([]), **options)


@pytest.mark.parametrize("items", ["abc", b"abc", {"a": 1}])
def test_one_value_is_no_list_of_items(app, items):
    """Its letters or its keys are hardly meant."""

    @app.task(base=BatchTask)
    def double(number):
        return [2 * n for n in number]

    for method in ("backfill", "delay_many"):
        with pytest.raises(TypeError, match=f"{method}\\(\\) takes a list of items, got a "):
            getattr(double, method)(items)
    with pytest.raises(TypeError, match="delay_many\\(\\) takes a list of items"):
        asyncio.run(double.adelay_many(items))


@pytest.mark.parametrize("window", [0, -3])
def test_a_window_has_room_for_a_row(app, window):
    """Nothing could ever leave through another one."""

    @app.task(base=BatchTask)
    def double(number):
        return [2 * n for n in number]

    with pytest.raises(ValueError, match=f"window must be at least 1 row, got {window}"):
        double.backfill([1], window=window)


def test_celerys_options_are_taken(app):
    """Those of a call, and those of a message."""
    options = ("queue", "priority", "expires", "headers", "time_limit", "serializer", "shop")
    check_options("backfill", app, {**dict.fromkeys(options), "stamped_headers": ["shop"]}, ())
