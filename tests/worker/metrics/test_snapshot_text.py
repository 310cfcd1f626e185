"""The text of Flower's worker page about batches."""

from __future__ import annotations

from celery_batch.worker.metrics.snapshot import in_words

BUSY = {
    "served": True,
    "max_batch_size": 64,
    "batches": 1000,
    "rows": 12345,
    "waiting": 3,
    "running": 1,
    "wait": {"p50": 0.0115, "p95": 0.25},
    "model": {"p50": 0.00612, "p95": 1.5},
}


def test_a_line_for_each_task():
    """Each task has a readable line."""
    idle = {"served": True, "max_batch_size": 8, "batches": 0}
    tasks = {
        "a": BUSY,
        "b": idle,
        "c": {**idle, "max_batch_size": 1},
        "of another queue": {**idle, "served": False},
    }
    stats = {"devices": ["cuda:0"], "device_idle_share": 0.25, "tasks": tasks}

    assert {
        "models on": "cuda:0, idle 25% of the time",
        "batches of a": (
            "1,000, of 12.3 rows on average and up to 64; wait 11.5 ms, of 95 in 100 up to"
            " 250 ms; model 6.12 ms, of 95 in 100 up to 1.5 s;"
            " now 3 requests waiting, 1 batch running"
        ),
        "batches of b": "none yet, of up to 8 rows",
        "batches of c": "none yet, of up to 1 row",
    } == in_words(stats)


def test_unknown_numbers():
    """A batch that has not ended has no time, and a new worker no idle share."""
    spread = {"p50": None, "p95": None}
    stats = {"devices": ["cpu"], "tasks": {"a": {**BUSY, "wait": spread, "model": spread}}}
    shown = in_words(stats)

    assert "cpu" == shown["models on"]
    assert "wait unknown; model unknown;" in shown["batches of a"]
