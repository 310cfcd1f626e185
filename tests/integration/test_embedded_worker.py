"""A user's whole suite on an embedded worker, as `celery.contrib.pytest` starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services.setup import ROOT

SUITE = ROOT / "tests" / "apps" / "embedded" / "suite.py"

#: Random canvases of each of the four runs.
CANVASES = 15

#: Seconds of a run, which takes 30 on an idle machine; and of one of its tests, after which the run
#: ends with the stacks of all threads.
LIMIT, HANGS = 1000 if "THOROUGH" in os.environ else 240, 90


#: Pool and transport know nothing of each other.
_OTHERS = pytest.mark.thorough("embedded workers of each pool on each transport")


@pytest.mark.timeout(LIMIT + 60)
@pytest.mark.parametrize(
    ("transport", "pool"),
    [
        ("memory", "solo"),
        ("redis", "threads"),
        pytest.param("memory", "threads", marks=_OTHERS),
        pytest.param("redis", "solo", marks=_OTHERS),
    ],
)
def test_suite_of_a_user(transport: str, pool: str, request: pytest.FixtureRequest, tmp_path: Path):
    """Every test passes, none hangs, and the process ends by itself."""
    url = request.getfixturevalue("broker") if transport == "redis" else ""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    number = CANVASES * (13 if "THOROUGH" in os.environ else 1)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    command += ["-p", "no:schemathesis"]  # takes half a second to import
    options = ["-c", str(tmp_path / "pytest.ini"), "--confcutdir", str(SUITE.parent)]
    hangs = ["-o", f"faulthandler_timeout={HANGS}", "-o", "faulthandler_exit_on_timeout=true"]
    theirs = {
        "THEIR_TRANSPORT": transport,
        "THEIR_BROKER": url,
        "THEIR_POOL": pool,
        "THEIR_CANVASES": str(number),
    }
    log = tmp_path / "suite.log"
    with log.open("w") as output:
        done = subprocess.run(
            [*command, *options, *hangs, "-v", "--durations=5", str(SUITE)],
            env={**os.environ, **theirs, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
            cwd=tmp_path,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=LIMIT,
        )

    assert 0 == done.returncode, log.read_text()
    assert "12 passed" in log.read_text()
