"""Texts through a network that is compiled: when a new shape comes, or for a few shapes before."""

from __future__ import annotations

import tempfile
import time
from typing import Any

from bench.app import SHAPES
from bench.models.encoder import Encoder, texts
from bench.open_loop import quantile, send
from bench.policies.loads import LOADS
from bench.reports.tables import Case, Effort, Goal, ResultTable
from bench.servers.stack import broker, running

__all__ = ["CASE"]

#: Texts a second, and for how many seconds they come.
_RATE, _SECONDS = 40.0, 15.0

_NAMES = {
    "any_shape": "not compiled, any shape",
    "compiled": "compiled, any shape",
    "fixed_shapes": "compiled, fixed shapes",
}

#: Outputs of batches and of single texts differ by rounding.
_TOLERANCE = 1e-3


def _measure(effort: Effort) -> dict[str, Any]:
    requests = list(LOADS["Poisson"](_RATE, effort.items(int(_RATE * _SECONDS)), 3))
    items = texts(len(requests), seed=3)
    model = Encoder()
    model.load("cpu")
    expected = [model.predict([item])[0][0] for item in items]
    with broker():
        rows = {
            name: _run(name, items, [request.arrived for request in requests], expected)
            for name in SHAPES
        }
    return {"rows": rows, "requests": len(items)}


def _run(
    name: str, items: list[list[int]], moments: list[float], expected: list[float]
) -> dict[str, float]:
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,  # torch keeps what it has compiled
        running(
            *("--concurrency=1", "-Q", f"bench-{name}"),
            timeout=600,
            TORCHINDUCTOR_CACHE_DIR=folder,
        ) as stack,
    ):
        loaded = time.monotonic() - began
        times, results = send(stack.app.tasks[f"bench.{name}"], items, moments)
        outputs = [result.get(timeout=600) for result in results]
        status = stack.status()[f"bench.{name}"]
    wrong = [n for n, each in enumerate(outputs) if abs(each[0] - expected[n]) > _TOLERANCE]
    if wrong:
        raise RuntimeError(f"{name}: {len(wrong)} outputs are not those of single texts")
    return {
        "loaded": loaded,
        "p50": quantile(times, 0.5),
        "p99": quantile(times, 0.99),
        "worst": max(times),
        "padding": status["padded_cost"] / status["cost"],
        "padding_rows": status.get("padding_rows", 0) / status["rows"],
    }


def _tables(data: dict[str, Any]) -> list[ResultTable]:
    rows = [
        (
            _NAMES[name],
            f"{row['loaded']:.0f}",
            f"{1000 * row['p50']:.0f}",
            f"{1000 * row['p99']:.0f}",
            f"{1000 * row['worst']:.0f}",
            f"{row['padding']:.2f}",
        )
        for name, row in data["rows"].items()
    ]
    headings = ("network", "start s", "p50 ms", "p99 ms", "worst ms", "padded/true")
    note = (
        f"The first {data['requests']} texts, {_RATE:g} a second, after the worker is ready;"
        f" torch.compile on one core, 11 shapes."
    )
    return [ResultTable("The first requests of a compiled network", headings, rows, (note,))]


def _goals(data: dict[str, Any]) -> list[Goal]:
    rows = data["rows"]
    worst = rows["fixed_shapes"]["worst"] / rows["compiled"]["worst"]
    return [Goal("worst wait, of that with any shape", worst, 0.2, unit=" x", most=True)]


CASE = Case(
    "shapes", "a compiled network with any and with fixed shapes", _measure, _tables, _goals,
    by_default=False,
)  # fmt: skip
