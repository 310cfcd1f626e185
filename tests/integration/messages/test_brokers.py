"""Batches are formed on every broker that the tests have."""

from __future__ import annotations

from celery import group


def test_a_group_is_batched_on_each_broker(each_setup):
    """Tasks sent together come back right, in fewer batches than tasks."""
    each_setup.worker("-c", "1")

    answers = group(each_setup.double.s(n) for n in range(16)).delay().get(timeout=60)

    assert [n * 2 for n in range(16)] == answers
    assert len(each_setup.recall("double")) < 16
