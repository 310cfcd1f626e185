"""
A backfill by itself, and beside requests that somebody waits for.

Its speed is held against the bare model, its memory against a million rows, and what
it costs others against the same requests without it; all of that takes turns.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from bench.models.reference import BATCH, MODELS, expected
from bench.open_loop import send
from bench.policies.virtual_worker import poisson
from bench.reports.tables import Case, Effort, Goal, ResultTable
from bench.servers.stack import Stack, broker, running

__all__ = ["CASE"]

_COST_ROWS = 100_000
_NOOP_ROWS = 1_000_000

#: Requests in a second, at random moments, and for how many seconds.
_RATE = 20.0
_SECONDS = 8.0

#: Seconds between two looks at the producer's memory.
_LOOK = 0.25

#: Seconds of a full batch of the "cost" model.
_BATCH_SECONDS = 0.010 + 0.0001 * BATCH

#: See `_as_installed`, and `bench.backfill_process`.
_COMPILED = (
    "Begun in a process that has asked before;"
    " modules are compiled, as pip does when it installs them."
)

#: As Redis counts: behind everything else.
_LAST = 9


def _measure(effort: Effort) -> dict[str, Any]:
    speeds: list[tuple[float, ...]] = []
    waits: dict[str, list[float]] = {"alone": [], "with": []}
    spans: dict[str, list[tuple[float, ...]]] = {"alone": [], "with": []}
    seconds = max(effort.share * _SECONDS, 1.0)
    with tempfile.TemporaryDirectory() as folder, broker():
        times = Path(folder) / "times"
        times.touch()
        os.environ.update(BENCH_TIMES=str(times), BENCH_CALLS="1", BENCH_OVERLAP="1")
        with running("--concurrency=1", "-Q", "celery,timed") as stack:
            _ask(stack, 1.0, seed=0)
            env = _as_installed(Path(folder))
            for round_ in range(effort.rounds):
                speeds.append(_speeds(effort.items(_COST_ROWS), env))
                for name in waits:
                    found = _beside(stack, times, seconds, (name, round_))
                    waits[name] += found[0]
                    spans[name].append(found[1])
            producer = _producer(effort.items(_NOOP_ROWS), Path(folder))
    beside = [_row(name, waits[name], spans[name]) for name in waits]
    head, whole, later = (statistics.median(each) for each in zip(*speeds, strict=True))
    shares = {"cost_share": whole, "head": head, "later_share": later}
    return {**shares, "producer": producer, "beside": beside}


def _as_installed(folder: Path) -> dict[str, str]:
    """
    Return an environment whose modules are compiled, as they are where pip has installed them.

    Where Python is told to keep no bytecode, each process would compile the client of
    Redis anew, and that would take longer than all else until the first batch.
    """
    env = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    with _filling("bench.cost", BATCH, env) as filler:
        filler.communicate(timeout=60)
    return env


def _speeds(rows: int, env: dict[str, str]) -> tuple[float, float, float]:
    """
    Return what a backfill of so many rows takes.

    Returns:
        The seconds until its first batch is under way, its share of the bare model's
        speed, and that share from then on.
    """
    model, began = MODELS["cost"], time.monotonic()
    for start in range(0, rows, BATCH):
        model(list(range(start, min(start + BATCH, rows))))
    pure = time.monotonic() - began
    with _filling("bench.cost", rows, env) as filler:
        first, ours = map(float, filler.communicate(timeout=300)[0].split()[-2:])
    head = first - _BATCH_SECONDS
    return head, pure / ours, pure / (ours - head)


@contextmanager
def _filling(
    task: str, rows: int, env: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "bench.backfill_process", task, str(rows)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as filler:
        try:
            yield filler
        finally:
            filler.kill()


def _beside(
    stack: Stack, times: Path, seconds: float, which: tuple[str, int]
) -> tuple[list[float], tuple[float, ...]]:
    """Return the waits of requests, and what the device did meanwhile."""
    name, seed = which
    if name == "alone":
        return _watched(stack, times, seconds, seed)
    with _filling("bench.timed", 0) as filler:
        assert filler.stdout is not None  # noqa: S101 - for the type checker
        if filler.stdout.readline() != "under way\n":
            raise AssertionError("the backfill does not begin")
        found = _watched(stack, times, seconds, seed)
    # What it has left in the broker goes before this.
    stack.app.tasks["bench.timed"].apply_async((0,), priority=_LAST).get(timeout=60)
    return found


def _watched(
    stack: Stack, times: Path, seconds: float, seed: int
) -> tuple[list[float], tuple[float, ...]]:
    began = time.monotonic()
    waits = _ask(stack, seconds, seed)
    ended = time.monotonic()
    lines = [tuple(map(float, line.split())) for line in times.read_text().splitlines()]
    calls = [each for each in lines if began <= each[0] and each[1] <= ended]
    busy = sum(each[1] - each[0] for each in calls) / (ended - began)
    return waits, (busy, sum(each[2] for each in calls) / (ended - began))


def _ask(stack: Stack, seconds: float, seed: int) -> list[float]:
    """Send requests at random moments, the same ones for each seed; return their waits."""
    arrivals = poisson(_RATE, 0.0, seconds, seed)
    numbers = range(len(arrivals))
    waits, results = send(stack.app.tasks["bench.timed"], numbers, arrivals)
    if [result.get(timeout=60) for result in results] != expected(numbers):
        raise AssertionError("a wrong answer")
    return waits


def _producer(rows: int, folder: Path) -> dict[str, Any]:
    """Backfill a file through the "noop" model, and look at the command's memory meanwhile."""
    given, answers = folder / "rows.jsonl", folder / "answers.jsonl"
    with given.open("w") as file:
        file.writelines(f"{row}\n" for row in range(rows))
    celery = str(Path(sys.executable).with_name("celery"))
    command = [celery, "-A", "bench.app", "batch", "backfill", "bench.noop"]
    command += ["--input", str(given), "--output", str(answers)]
    began, sizes = time.monotonic(), []
    with (folder / "log").open("w") as log, subprocess.Popen(command, stderr=log) as producer:
        process = psutil.Process(producer.pid)
        while producer.poll() is None:
            try:
                sizes.append(process.memory_info().rss / 2**20)
            except psutil.NoSuchProcess:  # between the two
                break
            time.sleep(_LOOK)
    seconds = time.monotonic() - began
    with answers.open() as file:
        if any(json.loads(line)["output"] != 2 * n for n, line in enumerate(file)):
            raise AssertionError("a wrong answer")
    quarter = sizes[len(sizes) // 4]
    looks = {"quarter": quarter, "end": sizes[-1] or quarter, "most": max(sizes)}
    return {"rows": rows, "seconds": seconds, "rate": rows / seconds, **looks}


def _row(name: str, waits: list[float], spans: list[tuple[float, ...]]) -> dict[str, Any]:
    quantiles = statistics.quantiles(waits, n=100)
    busy, rate = (statistics.median(each) for each in zip(*spans, strict=True))
    row = {"name": name, "requests": len(waits), "busy": busy, "rate": rate}
    return {**row, "p50": quantiles[49], "p99": quantiles[98]}


def _sheets(data: dict[str, Any]) -> list[ResultTable]:
    producer = data["producer"]
    speeds = [
        ('"cost", share of the bare model', f"{data['cost_share']:.3f}"),
        ("until its first batch is under way, ms", f"{1000 * data['head']:.0f}"),
        ("share of the bare model from then on", f"{data['later_share']:.3f}"),
        (f'"noop" from a file of {producer["rows"]:,} rows, rows/s', f"{producer['rate']:,.0f}"),
        *(
            (f"the command's memory {when}, MiB", f"{producer[name]:.0f}")
            for name, when in (("quarter", "after a quarter"), ("end", "at the end"))
        ),
    ]
    beside = [
        (
            {"alone": "without a backfill", "with": "beside one"}[row["name"]],
            f"{row['requests']}",
            *(f"{1000 * row[name]:.1f}" for name in ("p50", "p99")),
            f"{row['busy']:.3f}",
            f"{row['rate']:,.0f}",
        )
        for row in data["beside"]
    ]
    headings = ("requests", "number", "p50", "p99", "device busy", "rows/s")
    note = f"A full batch of this model takes {1000 * _BATCH_SECONDS:.1f} ms."
    title = f'{_RATE:g} requests a second at random moments, "cost" (milliseconds)'
    return [
        ResultTable("A backfill by itself", ("what", "measured"), speeds, (_COMPILED,)),
        ResultTable(title, headings, beside, (note,)),
    ]


def _goals(data: dict[str, Any]) -> list[Goal]:
    producer = data["producer"]
    alone, beside = data["beside"]
    added = (beside["p99"] - alone["p99"]) / _BATCH_SECONDS
    return [
        Goal('"cost", backfill: of pure', data["cost_share"], 0.97),
        Goal('"noop", backfill', producer["rate"], 20_000, unit=" rows/s"),
        Goal("memory of a backfill's command", producer["most"], 150, unit=" MiB", most=True),
        Goal("its growth after a quarter", producer["end"] / producer["quarter"], 1.1, most=True),
        Goal("p99 beside a backfill, added", added, 1, unit=" batches", most=True),
        Goal("device busy beside requests", beside["busy"], 0.95),
    ]


CASE = Case("backfill", "a backfill alone and beside requests", _measure, _sheets, _goals)
