"""``celery batch tune`` as users call it: a real model, and no broker anywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.mark.timeout(400)
def test_the_example_worker_is_tuned_without_a_broker():
    """Its own model is loaded and measured, and settings are proposed, in one command."""
    pytest.importorskip("torch")
    celery = str(Path(sys.executable).with_name("celery"))
    words = ["--sizes", "1,4", "--seconds", "0.05", "--latency", "30", "--rate", "1", "--json"]
    done = subprocess.run(
        [celery, "-A", "workers", "batch", "tune", "workers.infill", "--device", "cpu", *words],
        cwd=ROOT,
        env={**os.environ, "CELERY_BROKER_URL": "redis://127.0.0.1:1/0"},
        capture_output=True,
        text=True,
        timeout=360,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    found = json.loads(done.stdout)

    assert ("workers.infill", "cpu", True) == (found["task"], found["device"], found["meets"])
    assert [1, 4] == [each["size"] for each in found["sizes"]]
    assert all(0 < each["p50"] <= each["p95"] for each in found["sizes"])
