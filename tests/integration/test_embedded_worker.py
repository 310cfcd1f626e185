"""A user's whole suite on an embedded worker, as `celery.contrib.pytest` starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services.shop import ROOT

SUITE = ROOT / "tests" / "services" / "embedded" / "suite.py"

#: Random canvases of each of the four runs.
CANVASES = 15


@pytest.mark.parametrize("pool", ["solo", "threads"])
@pytest.mark.parametrize("transport", ["memory", "redis"])
def test_suite_of_a_user(transport: str, pool: str, request: pytest.FixtureRequest, tmp_path: Path):
    """Every test passes, none hangs, and the process ends by itself."""
    url = request.getfixturevalue("broker") if transport == "redis" else ""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    number = CANVASES * (13 if "THOROUGH" in os.environ else 1)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    options = ["-c", str(tmp_path / "pytest.ini"), "--confcutdir", str(SUITE.parent)]
    theirs = {
        "THEIR_TRANSPORT": transport,
        "THEIR_BROKER": url,
        "THEIR_POOL": pool,
        "THEIR_CANVASES": str(number),
    }
    done = subprocess.run(
        [*command, *options, "--durations=5", str(SUITE)],
        env={**os.environ, **theirs, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=1000 if "THOROUGH" in os.environ else 110,
    )

    assert 0 == done.returncode, done.stdout + done.stderr
    assert "12 passed" in done.stdout
