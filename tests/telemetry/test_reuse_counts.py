"""Rows that need not run are counted, task by task."""

from __future__ import annotations

from celery_batch.telemetry.meter import Meter
from celery_batch.telemetry.prometheus import families
from celery_batch.telemetry.report import BatchReport, End, Reuse, Work


def test_hits_misses_and_duplicates_add_up():
    """Also of batches that called no model."""
    meter = Meter(0.0)
    for work in (
        Work(1, 1.0, 2.0, 1.0, reuse=Reuse(hits=2, misses=5, duplicates=1)),
        Work(reuse=Reuse(hits=8)),
        Work(1, 3.0, 4.0, 1.0),
    ):
        meter.add(BatchReport("t", 8, 8, 8, "full", End.ANSWERED, {}, work=work))
    found = {
        sample.name: sample.value
        for family in families(
            meter.copy(), tasks={"t": {}}, idle=0.0, processes=1, refused=0, depths={}, labels={}
        )
        for sample in family.samples
        if sample.labels.get("task") == "t"
    }

    assert (10, 5, 1) == tuple(
        found[f"celery_batch_{name}_total"]
        for name in ("cache_hits", "cache_misses", "duplicate_rows")
    )
    assert 2 == found["celery_batch_model_calls_total"]
