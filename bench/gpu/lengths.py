"""Texts of unlike lengths, in batches of so many rows and of so much padded cost."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any

from bench.gpu.measuring import Calls, markdown, workers_of
from bench.gpu.models import BUDGETS, CALLS, ROWS, TextEncoder
from bench.gpu.networks import DEVICE, IS_TINY
from bench.models.encoder import texts
from celery_batch.batching.batch import Request
from celery_batch.batching.batcher import Batcher
from celery_batch.batching.policy import BatchPolicy
from celery_batch.config import LARGEST_BATCH

__all__ = ["measure", "table"]

#: Workers on the one device.
_WORKERS = (1, 2) if IS_TINY else (1, 2, 4)

#: Texts whose first scores, in thousandths, may differ so much with padding, and what part may.
_TOLERANCE, _UNLIKE = 20, 0.01


def measure(seconds: float) -> list[dict[str, Any]]:
    """Return the figures of each way to count, for a backlog of texts and several workers."""
    items = texts(200 if IS_TINY else int(8000 * seconds))
    policies = {f"rows{size}": BatchPolicy(size) for size in ROWS}
    policies |= {f"cost{cost}": _cost_policy(cost) for cost in BUDGETS}
    with tempfile.TemporaryDirectory() as folder:
        os.environ[CALLS] = str(Path(folder) / "pure")
        model = TextEncoder()
        model.load(DEVICE)
        loop = Calls(Path(folder) / "pure")
        pure = {name: _loop(model, policy, items, loop) for name, policy in policies.items()}
    del model
    found: list[dict[str, Any]] = []
    for workers in _WORKERS:
        with workers_of("lengths", workers) as place:
            for name in policies:
                place.drain(f"gpu.{name}", items[: len(items) // 8])
                found.append(
                    {"batches": name, "workers": workers} | place.drain(f"gpu.{name}", items)
                )
    expected = pure[f"rows{ROWS[0]}"]["answers"]
    for figures in (*pure.values(), *found):
        _check(figures.pop("answers"), expected)
        figures["padded"] = figures.pop("tokens") / sum(map(len, items))
    return [{"pure": pure[figures["batches"]], **figures} for figures in found]


def _cost_policy(cost: float) -> BatchPolicy:
    return BatchPolicy(LARGEST_BATCH, max_batch_cost=cost, padded=True)


def _check(answers: list[int], expected: list[int]) -> None:
    unlike = sum(abs(a - b) > _TOLERANCE for a, b in zip(answers, expected, strict=True))
    if unlike > _UNLIKE * len(expected):
        raise AssertionError(f"{unlike} of {len(expected)} answers differ with their batches")


def _loop(
    model: TextEncoder, policy: BatchPolicy, items: list[list[int]], calls: Calls
) -> dict[str, Any]:
    """Call the model directly, with the batches that the same rules form."""
    batches = list(_batches(policy, items))
    for batch in batches[:8]:
        model.predict([items[n] for n in batch])
    answers = [0] * len(items)
    with calls.watched() as figures:
        for batch in batches:
            for n, answer in zip(batch, model.predict([items[n] for n in batch]), strict=True):
                answers[n] = answer
    return {**figures, "answers": answers}


def _batches(policy: BatchPolicy, items: list[list[int]]) -> Iterator[list[int]]:
    batcher: Batcher[int] = Batcher(policy)
    for number, item in enumerate(items):
        batcher.add(Request(number, 0.0, cost=float(len(item))))
    while len(batcher):
        yield batcher.next(inf).items  # type: ignore[union-attr]


def table(rows: list[dict[str, Any]]) -> str:
    """Return a table of the figures in Markdown."""
    heads = "batches,padded/true,pure texts/s,busy,workers,as tasks,of pure,busy,mean batch"
    return markdown(heads, [_line(row) for row in rows])


def _line(row: dict[str, Any]) -> list[str]:
    pure = row["pure"]
    cells = [row["batches"], f"{row['padded']:.2f}", f"{pure['rate']:,.0f}", f"{pure['busy']:.0%}"]
    cells += [str(row["workers"]), f"{row['rate']:,.0f}", f"{row['rate'] / pure['rate']:.2f}"]
    return [*cells, f"{row['busy']:.0%}", f"{row['mean_batch']:.1f}"]
