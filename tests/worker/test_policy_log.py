"""What a worker says at its start of when a task's batches leave."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from celery import Celery

from celery_batch import BatchTask
from celery_batch.worker.bootsteps import log_policy

PLAIN = {"max_batch_size": 16, "max_wait": 0.01, "linger": 0.002}
WAITS = "max_wait 0.01 s, linger 0.002 s"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, f"t: batches of up to 16, {WAITS}"),
        (
            {"cost": "x", "max_batch_cost": 2048, "padded": True, "max_batch_size": None},
            f"t: batches of up to 2048 of padded cost, {WAITS}",
        ),
        (
            {"cost": "x", "max_batch_cost": 64},
            f"t: batches of up to 64 of cost and 16 rows, {WAITS}",
        ),
        ({"batch_by": len}, f"{WAITS}, batch_by"),
        ({"batch_sizes": (4, 16)}, f"{WAITS}, batch_sizes 4 16"),
        (
            {"target_latency": 0.2, "shed": True, "dedupe": True},
            f"{WAITS}, target_latency 0.2 s with shed, dedupe",
        ),
        ({"cache_ttl": 600, "device_share": 2}, f"{WAITS}, cache_ttl 600 s, device_share 2"),
    ],
    ids=lambda value: "-".join(value) or "plain" if isinstance(value, dict) else "",
)
def test_the_line_has_what_is_set(
    caplog: pytest.LogCaptureFixture, options: dict[str, Any], words: str
):
    """The size or the cost, the waits, and the options that most tasks do not have."""
    app = Celery("logged", set_as_current=False)
    given = {name: value for name, value in {**PLAIN, **options}.items() if value is not None}

    @app.task(base=BatchTask, name="t", shared=False, **given)
    def t(x: list[Any]) -> list[Any]:
        return x

    with caplog.at_level(logging.INFO):
        log_policy(t)

    # Listeners of other tests' apps may still log.
    (message,) = [each.message for each in caplog.records if each.name == log_policy.__module__]
    assert message.endswith(words)
