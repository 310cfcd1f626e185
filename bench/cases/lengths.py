"""Texts of unlike lengths through an encoder that pads, on one core: rows or cost."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

from bench.app import COST, ROWS
from bench.encoder import Encoder, texts
from bench.stack import broker, running
from bench.tables import Case, Effort, Goal, ResultTable
from celery_batch.batching.batcher import Batcher
from celery_batch.batching.policy import BatchPolicy
from celery_batch.batching.request import Request

__all__ = ["CASE"]

_TEXTS = 4096

#: Outputs of batches and of single texts differ by rounding.
_TOLERANCE = 1e-3

_CONTESTANTS = (*(f"rows{size}" for size in ROWS), "cost_limited")


def _measure(effort: Effort) -> dict[str, Any]:
    items = texts(effort.items(_TEXTS))
    model = Encoder()
    model.load("cpu")
    expected = [model.predict([item])[0] for item in items]
    rounds = []
    with broker():
        for _ in range(effort.rounds):
            found = {name: _drain(name, items, expected) for name in _CONTESTANTS}
            best = max(ROWS, key=lambda size: found[f"rows{size}"]["rate"])
            found["loop, rows"] = _loop(model, BatchPolicy(best), items)
            policy = BatchPolicy(1024, max_batch_cost=COST, padded=True)
            found["loop, cost"] = _loop(model, policy, items)
            rounds.append(found)
    rows = {
        name: {key: statistics.median(each[name][key] for each in rounds) for key in found}
        for name, found in rounds[0].items()
    }
    return {"rows": rows, "rounds": rounds}


def _drain(name: str, items: list[list[int]], expected: list[float]) -> dict[str, float]:
    """Send all texts at once to a worker that counts in rows or in cost."""
    task = f"bench.{name}"
    with running("--concurrency=1", "-Q", f"bench-{name}") as stack:
        began = time.monotonic()
        results = stack.app.tasks[task].delay_many(items)
        outputs = [result.get(timeout=600) for result in results]
        seconds = time.monotonic() - began
        status = stack.status()[task]
    wrong = [n for n, each in enumerate(outputs) if abs(each - expected[n]) > _TOLERANCE]
    if wrong:
        raise RuntimeError(f"{task}: {len(wrong)} outputs are not those of single texts")
    sizes = [result.batch_info.size for result in results]
    return {
        "rate": len(items) / seconds,
        "batches": status["batches"],
        "padding": status["padded_cost"] / status["cost"] if "cost" in status else 0.0,
        "rows": statistics.mean(sizes),
    }


def _loop(model: Encoder, policy: BatchPolicy, items: list[list[int]]) -> dict[str, float]:
    """Call the model directly, with the batches that the same rules form."""
    batches = list(_batches(policy, items))
    began = time.monotonic()
    for batch in batches:
        model.predict(batch)
    seconds = time.monotonic() - began
    padded = sum(max(map(len, batch)) * len(batch) for batch in batches)
    return {
        "rate": len(items) / seconds,
        "batches": len(batches),
        "padding": padded / sum(map(len, items)),
        "rows": len(items) / len(batches),
    }


def _batches(policy: BatchPolicy, items: Sequence[list[int]]) -> Any:
    batcher: Batcher[list[int]] = Batcher(policy)
    for item in items:
        batcher.add(Request(item, 0.0, cost=float(len(item))))
    batcher.drain()
    while len(batcher):
        yield batcher.next(0.0).items  # type: ignore[union-attr]


def _tables(data: dict[str, Any]) -> list[ResultTable]:
    rows = [
        (
            name,
            f"{row['rate']:.0f}",
            f"{row['batches']:.0f}",
            f"{row['padding']:.2f}" if row["padding"] else "",
        )
        for name, row in data["rows"].items()
    ]
    note = f"Log-normal lengths from 4 to 256 tokens; max_batch_cost={COST}, padded, sort_window=8."
    headings = ("batches", "texts/s", "batches", "padded/true")
    return [ResultTable("A backlog of texts of unlike lengths", headings, rows, (note,))]


def _goals(data: dict[str, Any]) -> list[Goal]:
    rows = data["rows"]
    best = max(rows[f"rows{size}"]["rate"] for size in ROWS)
    gain = rows["cost_limited"]["rate"] / best
    of_loop = rows["loop, cost"]["rate"] / rows["loop, rows"]["rate"]
    return [
        Goal("by cost, of the best size in rows", gain, 2.2, unit=" x"),
        Goal("share of the plain loop's gain", gain / of_loop, 0.9),
        Goal("padded/true", rows["cost_limited"]["padding"], 1.6, most=True),
    ]


CASE = Case(
    "lengths", "texts of unlike lengths, by rows and by cost", _measure, _tables, _goals,
    by_default=False,
)  # fmt: skip
