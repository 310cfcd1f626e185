"""
What ``celery batch tune`` foretells, beside what a real worker then does under the same load.

The models sleep where a GPU would compute, and requests come when the simulation
has them come; what is left is what the simulation leaves out: the way of messages.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from bench.models.reference import BATCH, MODELS
from bench.open_loop import quantile, send
from bench.reports.tables import Case, Effort, ResultTable
from bench.servers.stack import broker, running
from celery_batch.batching.policy import BatchPolicy
from celery_batch.tuning.curve import Curve
from celery_batch.tuning.measure import Plan, Run, measure
from celery_batch.tuning.simulate import Load, simulate

__all__ = ["CASE"]

#: Requests a second, by task.
_RATES = {"cost": (20, 200, 1000, 2000), "bert": (20, 100, 300), "slow": (5, 20, 60, 110)}

#: Requests at each rate, but no more than come in so many seconds.
_REQUESTS = 2000
_LONGEST = 60.0

#: Seconds of a message and its answer on their way, as `celery batch tune` supposes.
_OVERHEAD = 0.003

#: As in `bench.app`.
_POLICY = BatchPolicy(BATCH, 0.1)


def _measure(effort: Effort) -> dict[str, Any]:
    rows = []
    with broker(), running("--concurrency=1") as stack:
        for name, rates in _RATES.items():
            curve = _curve(name)
            for rate in rates:
                load = Load.at(rate, effort.items(int(min(_REQUESTS, rate * _LONGEST))))
                predicted = simulate(_POLICY, curve, load)
                task = stack.app.tasks[f"bench.{name}"]
                task.delay(0).get(timeout=30)
                before = _batches(stack, name)
                seen, _ = send(task, range(len(load.arrivals)), load.arrivals)
                size = len(seen) / max(_batches(stack, name) - before, 1)
                row = {
                    "task": name,
                    "rate": rate,
                    "predicted": [predicted.p50, predicted.p99, predicted.batch_size],
                }
                rows.append({**row, "measured": [quantile(seen, 0.5), quantile(seen, 0.99), size]})
    return {"rows": rows}


def _curve(name: str) -> Curve:
    def run(size: int) -> Run:
        began = time.perf_counter()
        MODELS[name]([0] * size)
        return Run(time.perf_counter() - began)

    plan = Plan((1, 2, 4, 8, 16, 32, BATCH), seconds=0.5, asked_for=True)
    return replace(measure(run, plan, lambda _: None), overhead=_OVERHEAD)


def _batches(stack: Any, name: str) -> int:
    return int(stack.status().get(f"bench.{name}", {}).get("batches", 0))


def _sheets(data: dict[str, Any]) -> list[ResultTable]:
    rows = [
        (
            f'"{row["task"]}" at {row["rate"]:,}/s',
            *(
                f"{scale * row[side][place]:.1f}"
                for place, scale in ((0, 1000), (1, 1000), (2, 1))
                for side in ("predicted", "measured")
            ),
        )
        for row in data["rows"]
    ]
    headings = (
        "load",
        "p50 predicted",
        "measured",
        "p99 predicted",
        "measured",
        "batch predicted",
        "measured",
    )
    title = "What the simulation predicts, and what a worker does (milliseconds; items in a batch)"
    return [ResultTable(title, headings, rows)]


CASE = Case(
    "forecast", "what tune foretells, beside a real worker", _measure, _sheets, by_default=False
)
