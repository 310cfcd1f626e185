"""The benchmarks run: small, ours only, each answer checked by the benchmark itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from bench.wrk import find_wrk

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
def test_backfill_is_measured_alone_and_beside_requests(tmp_path):
    """A few thousand rows and a second of requests give every figure."""
    written = tmp_path / "measured.json"
    _run("-m", "bench", "backfill", "--rounds", "1", "--share", "0.005", "--json", str(written))
    measured = json.loads(written.read_text())["cases"]["backfill"]

    assert 5_000 == measured["producer"]["rows"]
    assert ["alone", "with"] == [row["name"] for row in measured["beside"]]
    assert all(0 < row["p50"] <= row["p99"] for row in measured["beside"])


@pytest.mark.thorough("the programs of bench/ at a small size")
def test_forecasts_are_held_against_a_worker(tmp_path):
    """A few requests at each rate have an answer, beside what the simulation said of them."""
    written = tmp_path / "measured.json"
    _run("-m", "bench", "forecast", "--share", "0.005", "--json", str(written))
    rows = json.loads(written.read_text())["cases"]["forecast"]["rows"]

    assert {"cost", "bert", "slow"} == {row["task"] for row in rows}
    assert all(row["predicted"][0] > 0 < row["measured"][0] for row in rows)


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


@pytest.mark.thorough("the programs of bench/ at a small size")
@pytest.mark.timeout(400)
def test_gpu_benchmark_runs_where_packages_lie_in_a_folder(tmp_path):
    """
    On a machine without a package index, the gathered wheels are all that the benchmark needs.

    Only PyTorch is there already.  Packages in a folder on PYTHONPATH bring no programs.
    """
    torch = pytest.importorskip("torch")
    wheels, site = tmp_path / "wheels", tmp_path / "site"
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    subprocess.run([_ROOT / "bench" / "gpu_wheels.sh", wheels, python], check=True, timeout=120)
    index_less = ("--no-index", "--no-deps", "--no-compile", "--target", str(site))
    _run("-m", "pip", "install", *index_less, *map(str, wheels.glob("*.whl")))
    venv.create(tmp_path / "bare")
    written = tmp_path / "gpu.json"
    options = ("sizes", "--seconds", "0.1", "--json", str(written))
    folders = [str(site), str(Path(torch.__file__).parents[1])]

    shown = _run(
        *("-m", "bench.gpu", *options),
        python=tmp_path / "bare" / "bin" / "python",
        BENCH_GPU_SIZES="4",
        CUDA_VISIBLE_DEVICES="",
        PYTHONPATH=os.pathsep.join([str(_ROOT), *folders]),
    )

    assert "| encoder | 4 |" in shown
    row, _ = json.loads(written.read_text())["sizes"]
    assert row["items"] >= 16
    assert 1.0 >= row["tasks"]["busy"] > 0.0
