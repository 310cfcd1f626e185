"""A misspelt option of a backfill is an error, and not ignored."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_batch import BatchTask
from celery_batch.backfill.iterate import check_options


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
    check_options(app, ["queue", "priority", "expires", "headers", "time_limit", "serializer"])
