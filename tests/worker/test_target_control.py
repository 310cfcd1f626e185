"""Since when requests of a task with a latency target count."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from celery_batch.protocol import SENT
from celery_batch.worker.scheduling.target import sent_at


def request(sent: Any, **fields: Any) -> Any:
    """Return a request that arrived a moment ago."""
    return SimpleNamespace(arrived=time.monotonic() - 0.1, request_dict={SENT: sent, **fields})


def test_a_request_counts_from_its_call():
    """Its message says when that was, in milliseconds."""
    made = request(round((time.time() - 2) * 1000))

    assert pytest.approx(time.monotonic() - 2, abs=0.2) == sent_at(made)


@pytest.mark.parametrize("sent", [None, "now", True, 0, -1, 10**400, -(10**400), 1.5])
def test_whatever_a_message_says_its_request_counts_from_its_arrival(sent: Any):
    """Anything may be written to a broker, and an error would end the worker's event loop."""
    made = request(sent)

    assert made.arrived == sent_at(made)


def test_a_request_with_an_eta_counts_from_its_arrival():
    """It was not meant to run before."""
    made = request(round((time.time() - 2) * 1000), eta="2030-01-01T00:00:00")

    assert made.arrived == sent_at(made)
