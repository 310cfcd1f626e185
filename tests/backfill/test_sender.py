"""What cannot be answered is not sent."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_batch import BatchTask
from celery_batch.errors import BackfillError


def test_answers_need_a_place():
    """Without a result backend there would be no answers."""
    app = Celery("none", set_as_current=False, broker="memory://")

    @app.task(base=BatchTask)
    def double(number):
        return [2 * n for n in number]

    with pytest.raises(BackfillError, match="has no result backend"):
        next(double.backfill([1]))
