"""Rows for which Celery stores no result."""

from __future__ import annotations

import pytest

from celery_batch.backfill.engine import Backfill
from celery_batch.backfill.window import Limits, Row


@pytest.mark.parametrize(
    "numbers", [[2, 1, 4], [1], [4], [1, 3, 5]], ids=["mixed", "ignored", "rejected", "all"]
)
def test_ignored_and_rejected_rows_have_failed(app, numbers):
    """A row fails alone, among others, and where the model ignores all of them."""
    wanted = {
        n: (None, f"Ignore: is {n}") if n % 2 else (None, "Reject: is 4") if n == 4 else (2 * n, "")
        for n in numbers
    }
    answers = {each.item: each[1:] for each in app.refusing.backfill(numbers)}

    assert wanted == answers


def test_rows_that_get_no_answer_have_failed_in_the_end(app):
    """They are sent again a few times, each time after a longer pause."""
    rows = [Row(n, str(n), (n,)) for n in range(3)]
    limits = Limits(window=4, chunk_size=2, patience=0.02)
    answers = []
    with Backfill(app.unanswered, rows, limits) as backfill:
        while not backfill.is_over:
            answers += backfill.step(timeout=0.1)

    assert [0, 1, 2] == [each.row.position for each in answers]
    (error,) = {each.error for each in answers}
    assert error.startswith("DeadlineExceeded: was sent 6 times; each time no worker had it")
