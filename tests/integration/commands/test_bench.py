"""The benchmarks run: small, ours only, each answer checked by the benchmark itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.servers.wrk import find_wrk

_ROOT = Path(__file__).parents[3]


def _run(
    *command: str, seconds: float = 110, python: str | Path = sys.executable, **env: str
) -> str:
    done = subprocess.run(
        [python, *command],
        check=False,
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": str(_ROOT), **env},
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert 0 == done.returncode, done.stderr[-4000:]
    return done.stdout


@pytest.mark.thorough("the programs of bench/ at a small size")
def test_cases_measure_and_say_what_is_reached(tmp_path):
    """A few items of a drain and of a prefilled queue give figures and goals."""
    written = tmp_path / "measured.json"
    options = ("--no-peers", "--rounds", "1", "--share", "0.002", "--json", str(written))

    shown = _run("-m", "bench", "cost", "scale", *options)

    assert '"cost", delay_many: of pure' in shown
    cases = json.loads(written.read_text())["cases"]
    rows = cases["cost"]["rows"]
    assert ["pure", *["ours"] * 2, *["our RedisStreamer"] * 2] == [row["kind"] for row in rows]
    assert [1_000] == [row["drained"] for row in cases["scale"]["rows"]]


@pytest.mark.thorough("the programs of bench/ at a small size")
@pytest.mark.timeout(300)
def test_seeds_tables_are_made_again(tmp_path):
    """A second of each web server and a few items through futures give every row a figure."""
    find_wrk()
    written = tmp_path / "measured.json"

    shown = _run("-m", "bench", "seeds", "--quick", "--json", str(written), seconds=280)

    assert "seeds' of pure" in shown
    seeds = json.loads(written.read_text())["cases"]["seeds"]
    assert all(row["rate"] > 1 and not row["errors"] for row in seeds["web"])
    assert [1, 1, 1, 2, 2, 4, 4] == [row["workers"] for row in seeds["futures"]]
