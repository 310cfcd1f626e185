"""Answers in the input's order, where workers are not equally fast."""

from __future__ import annotations

from celery_batch.backfill.engine import Backfill
from celery_batch.backfill.window import MOST_WINDOWS, Limits, Row
from celery_batch.processes.managed_process import wait_until
from tests.services.forked import start
from tests.services.setup import CELERY

WINDOW, ROWS = 16, 200


def test_a_slow_worker_keeps_no_fast_one_idle(served, app, tmp_path):
    """Others answer what comes behind its rows, so many windows of it and no more."""
    released, read, answers = tmp_path / "released", [], []
    env = {**served[1], "RELEASED": str(released)}
    two = ["-Q", "uneven", "--pool=threads", "--concurrency=2", "--without-mingle"]
    command = [CELERY, "-A", "backfill_tasks", "worker", *two]
    source = (read.append(n) or Row(n, str(n), (n,)) for n in range(ROWS))
    limits = Limits(window=WINDOW, chunk_size=4)
    with (
        start(command, tmp_path / "worker.log", env=env) as child,
        Backfill(app.held_up, source, limits, {"queue": "uneven"}) as backfill,
    ):

        def why():
            answers.extend(backfill.step(timeout=0.05))
            return (
                ""
                if len(read) >= MOST_WINDOWS * WINDOW and backfill.status()["pending"] == 4
                else "idle"
            )

        wait_until(why, [child], what="fast worker", timeout=60)
        assert ([], MOST_WINDOWS * WINDOW) == (answers, len(read))
        released.touch()
        while not backfill.is_over:
            answers.extend(backfill.step())

    assert [2 * n for n in range(ROWS)] == [each.output for each in answers]
