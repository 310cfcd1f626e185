"""A task queue's report as metric families."""

from __future__ import annotations

from typing import Any

from celery_batch.telemetry.prometheus import families


def _found(**report: Any) -> dict[str, float]:
    """Return the samples of one task with a report of its task queue, by name and outcome."""
    return {
        sample.name + sample.labels.get("outcome", ""): sample.value
        for family in families(
            {}, tasks={"t": report}, idle=0.0, processes=1, refused=0, depths={}, labels={}
        )
        for sample in family.samples
        if sample.labels.get("task") == "t"
    }


def test_what_a_task_queue_reports_has_metrics():
    """Cost, padding, keys and the latency target are there for tasks that have them."""
    latency = {"limit": 12.5, "in_time": 7, "late": 2, "refused": 3}
    found = _found(
        cost=40.0, padded_cost=50.0, padding_rows=6, keys=4, max_batch_cost=64,
        target_latency=0.2, latency=latency,
    )  # fmt: skip

    assert (40, 50, 6) == tuple(
        found[f"celery_batch_{name}_total"] for name in ("cost", "padded_cost", "padding_rows")
    )
    assert (4, 64, 0.2, 12.5) == tuple(
        found[f"celery_batch_{name}"]
        for name in ("waiting_keys", "max_batch_cost", "target_latency_seconds", "chosen_limit")
    )
    assert (7, 2, 3) == tuple(
        found[f"celery_batch_target_requests_total{name}"]
        for name in ("in_time", "late", "refused")
    )


def test_what_a_task_does_not_have_has_no_metrics():
    """A task without a cost or a target has no series that say 0."""
    found = _found(waiting=3)

    assert 3 == found["celery_batch_waiting_requests"]
    assert not [name for name in found if "cost" in name or "target" in name or "padding" in name]
