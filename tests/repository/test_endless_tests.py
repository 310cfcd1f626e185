"""A test that goes on after its time limit ends its process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.services.setup import ROOT

_ENDLESS = '''
"""Tests with a time limit."""
import time

def test_ends():
    """In time."""

def test_waits_for_ever():
    """Whatever is raised in it."""
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass
'''


def test_endless_test_ends_its_process(tmp_path: Path):
    """The run fails soon after the time limit, and says where the test was."""
    (tmp_path / "test_endless.py").write_text(_ENDLESS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.plugins.time_limit",
        "--timeout=1",
    ]
    done = subprocess.run(
        [
            *command,
            "-p",
            "no:randomly",
            "-c",
            "/dev/null",
            "--rootdir",
            str(tmp_path),
            str(tmp_path),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert 1 == done.returncode
    assert "in test_waits_for_ever" in done.stderr
    assert "in test_ends" not in done.stderr
