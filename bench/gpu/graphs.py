"""Images that come one by one: for batches of any size, of few sizes, and in CUDA graphs."""

from __future__ import annotations

from typing import Any

from bench.gpu.app import app
from bench.gpu.measuring import Place, markdown, workers_of
from bench.gpu.networks import IS_TINY
from bench.open_loop import quantile, send
from bench.policies.loads import LOADS

__all__ = ["measure", "table"]

#: Seconds of each load that are not counted, in which connections are made.
_FIRST = 0.5

#: Images a second.
_RATES = (20.0,) if IS_TINY else (50.0, 500.0, 1500.0)

#: The tasks: whatever size a batch has; sizes that the warm-up has run; graphs of these sizes.
_NETWORKS = ("any size", "fixed sizes", "graphs")


def measure(seconds: float) -> list[dict[str, Any]]:
    """Return the figures of each network at each rate, the networks in turn."""
    rows = []
    with workers_of("graphs") as place:
        for rate in _RATES:
            arrivals = [
                each.arrived for each in LOADS["Poisson"](rate, int(rate * (_FIRST + seconds)), 3)
            ]
            rows += [
                {
                    "network": name,
                    "rate": rate,
                    **_measure(app.tasks[f"gpu.{name}"], arrivals, place),
                }
                for name in _NETWORKS
            ]
    return rows


def _measure(task: Any, arrivals: list[float], place: Place) -> dict[str, Any]:
    figures: dict[str, Any]
    with place.watched() as figures:
        times, results = send(task, list(range(len(arrivals))), arrivals)
        for result in results:
            result.get(timeout=60)
    first = sum(arrival < _FIRST for arrival in arrivals)
    times, results = times[first:], results[first:]
    seconds = [result.batch_info.seconds for result in results]
    del figures["rate"]
    return figures | {
        "p50": quantile(times, 0.5),
        "p99": quantile(times, 0.99),
        "model": quantile(seconds, 0.5),
        "longest": max(seconds),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return a table of the figures in Markdown."""
    heads = "images/s,batches,p50 ms,p99 ms,model call p50 ms,longest ms,mean batch,busy"
    return markdown(heads, [_line(row) for row in rows])


def _line(row: dict[str, Any]) -> list[str]:
    times = [f"{1000 * row[key]:.1f}" for key in ("p50", "p99", "model", "longest")]
    cells = [f"{row['rate']:,.0f}", row["network"], *times]
    return [*cells, f"{row['mean_batch']:.1f}", f"{row['busy']:.0%}"]
