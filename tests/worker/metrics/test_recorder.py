"""What a worker records of each batch, however it ends."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from celery_batch.telemetry.report import Work
from celery_batch.testing import ManualClock
from celery_batch.worker.dispatch.follow_up import BatchEnd, Unanswered, error_info
from celery_batch.worker.metrics.recorder import logger
from tests.worker.doubles import Pool, Worker

LOGGER = "celery_batch.batches"


def taken(worker: Worker, pool: Pool, *ids: str) -> Callable[..., None]:
    """Have a process accept a batch of these requests, and return the callback for its end."""
    worker.send("trios", *ids)
    sent = pool.sent[-1]
    sent.accept_callback(7, 100.0)
    return sent.callback


def summary(worker: Worker) -> dict[str, Any]:
    """Return the task's counts."""
    with worker.scheduler.recorder.counts() as meter:
        return meter.tally("trios").summary()


@pytest.mark.parametrize(
    ("unanswered", "end"),
    [
        (Unanswered.INTERRUPTED, "broke_off"),
        (Unanswered.NOT_STORED, "not_stored"),
        (Unanswered.NOT_STARTED, "refused"),
    ],
)
def test_run_without_results_is_counted(
    worker: Worker, pool: Pool, unanswered: Unanswered, end: str
):
    """Requests that run again have not ended; the reason is counted."""
    end_with = taken(worker, pool, "a", "b", "c")
    end_with(BatchEnd([(0, "A", 0.1), None, None], unanswered=unanswered))
    found = summary(worker)

    assert {"succeeded": 1, "again": 2} == found["outcomes"]
    assert 1 == found["trouble"][end]


def test_batch_whose_requests_were_too_late_has_not_broken_off(worker: Worker, pool: Pool):
    """Requests that expire or are revoked in a batch that waits are no fault of its process."""
    calls = worker.send("trios", "a", "b", "c")
    pool.sent[-1].accept_callback(7, 100.0)
    calls[0].has_expired = calls[1].has_expired = calls[2].is_done = True
    pool.sent[-1].callback(BatchEnd([None, None, None]))

    assert not sum(summary(worker)["trouble"].values())


def test_line_in_the_log_has_its_numbers_beside_it(
    worker: Worker, pool: Pool, clock: ManualClock, caplog: pytest.LogCaptureFixture
):
    """At INFO a batch is one record, with words for people and a dict for programs."""
    end_with = taken(worker, pool, "a", "b", "c")
    now = clock()
    with caplog.at_level(logging.INFO, LOGGER):
        end_with(BatchEnd([(0, None, 0.1)] * 3, Work(1, now, now + 0.5, 0.5)))
    (record,) = [each for each in caplog.records if each.name == LOGGER]

    assert record.getMessage().startswith("trios: batch of 3 (full), waited ")
    assert ("trios", 3, "full", 1.0) == tuple(
        record.batch[name] for name in ("task", "size", "reason", "fill")
    )


def test_each_request_is_a_line_at_debug(
    worker: Worker, pool: Pool, caplog: pytest.LogCaptureFixture
):
    """At DEBUG each request of the batch has a record as well, with its own end."""
    end_with = taken(worker, pool, "a", "b", "c")
    with caplog.at_level(logging.DEBUG, LOGGER):
        end_with(BatchEnd([(0, None, 0.1), (1, error_info(ValueError("bad")), 0.1), None]))
    items = [record.item for record in caplog.records if hasattr(record, "item")]

    assert ["a", "b", "c"] == [item["id"] for item in items]
    assert ["succeeded", "failed", "again"] == [item["outcome"] for item in items]


def test_nothing_is_logged_at_higher_levels(
    worker: Worker, pool: Pool, caplog: pytest.LogCaptureFixture
):
    """At WARNING no line is made."""
    end_with = taken(worker, pool, "a", "b", "c")
    with caplog.at_level(logging.WARNING, LOGGER):
        end_with(BatchEnd([(0, None, 0.1)] * 3))

    assert [] == [each for each in caplog.records if each.name == logger.name]


def test_error_of_the_recorder_affects_no_request(
    worker: Worker, pool: Pool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """If recording fails, each request has its end all the same."""
    monkeypatch.setattr("celery_batch.worker.metrics.recorder._report", lambda *_: 1 / 0)
    end_with = taken(worker, pool, "a", "b", "c")
    end_with(BatchEnd([(0, None, 0.1)] * 3))

    assert ["a", "b", "c"] == worker.ids("settled")
    assert "Could not record a batch of trios" in caplog.text
