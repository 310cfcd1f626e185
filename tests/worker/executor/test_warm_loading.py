"""The environment of a pool process before its models are loaded."""

from __future__ import annotations

import os

from celery import Celery

from celery_batch.runtime import registry
from celery_batch.worker.executor.loader import load_models


def test_pool_processes_share_the_cores_that_they_may_use(monkeypatch):
    """Only the cores that the worker may use are divided among its processes."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(registry, "_device", None)
    with Celery("cores", set_as_current=False) as app:
        load_models(app, [], processes=3)

    assert "4" == os.environ["OMP_NUM_THREADS"]
