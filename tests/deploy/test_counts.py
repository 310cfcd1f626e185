"""Batches are counted by asking the workers, and nobody waits for a dead one."""

from __future__ import annotations

import math

import pytest

from demo.counts import BatchCounts, read_counts


def test_mean_batch_size_is_of_the_batches_since():
    """The mean counts only what came after the earlier count; without any there is none."""
    earlier = BatchCounts(batches=10, requests=10)

    assert BatchCounts(batches=14, requests=110).mean_since(earlier) == 25.0
    assert math.isnan(earlier.mean_since(earlier))


def test_check_ends_the_wait_for_silent_workers(redis_server):
    """While nobody answers the check is asked, and what it raises is the reason."""

    def check():
        raise RuntimeError("worker ended")

    with pytest.raises(RuntimeError, match="worker ended"):
        read_counts(redis_server.url, "workers.infill", check=check)
