"""Full batches of one size: in a plain loop, as tasks, and as chunks."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from bench.gpu.measuring import Calls, Place, markdown, workers_of
from bench.gpu.models import CALLS, MODELS, SIZES, items
from bench.gpu.networks import DEVICE

__all__ = ["measure", "table"]

_STOCK = 512


def measure(seconds: float) -> list[dict[str, Any]]:
    """Return the figures of each model and size."""
    rows = []
    for name in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            os.environ[CALLS] = str(Path(folder) / "calls")
            calls = Calls(Path(folder) / "calls")
            model: Any = MODELS[name]()
            model.load(DEVICE)
            with workers_of(name) as place:
                rows += [_row(name, model, calls, place, size, seconds) for size in SIZES]
    return rows


def _row(
    name: str, model: Any, calls: Calls, place: Place, size: int, seconds: float
) -> dict[str, Any]:
    """Measure batches of one size in this process, and behind Redis and a worker."""
    stock = items(name, max(2 * size, _STOCK))
    probe = [_pure(model, calls, stock[:size] * times, size)["rate"] for times in (2, 4)]
    count = max(4, round(seconds * probe[-1] / size)) * size
    inputs = (stock * (count // len(stock) + 1))[:count]
    task = f"gpu.{name}.{size}"
    place.drain(task, inputs[: 8 * size])
    pure = _pure(model, calls, inputs, size)
    tasks, chunks = place.drain(task, inputs), place.drain(task, inputs, rows=4 * size)
    right = pure.pop("answers")
    same = [sum(map(int.__eq__, right, each.pop("answers"))) / count for each in (tasks, chunks)]
    return {
        "model": name,
        "batch": size,
        "items": count,
        "pure": pure,
        "tasks": tasks,
        "chunks": chunks,
        "same": min(same),
    }


def _pure(model: Any, calls: Calls, inputs: list[Any], size: int) -> dict[str, Any]:
    with calls.watched() as figures:
        parts = [
            model.predict(inputs[first : first + size]) for first in range(0, len(inputs), size)
        ]
    return {**figures, "answers": [answer for part in parts for answer in part]}


def table(rows: list[dict[str, Any]]) -> str:
    """Return a table of the figures in Markdown."""
    heads = (
        "model,batch,pure items/s,busy,as tasks,of pure,busy,mean batch,as chunks,of pure,busy,same"
    )
    return markdown(heads, [_line(row) for row in rows])


def _line(row: dict[str, Any]) -> list[str]:
    pure, cells = row["pure"], [row["model"], str(row["batch"])]
    cells += [f"{pure['rate']:,.0f}", f"{pure['busy']:.0%}"]
    for got in (row["tasks"], row["chunks"]):
        cells += [f"{got['rate']:,.0f}", f"{got['rate'] / pure['rate']:.2f}", f"{got['busy']:.0%}"]
    cells.insert(7, f"{row['tasks']['mean_batch']:.1f}")
    return [*cells, format(row["same"], ".1%")]
