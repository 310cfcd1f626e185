"""Texts of unlike lengths through an encoder that pads, on one core: rows or cost."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import cycle, islice
from math import inf
from typing import Any, NamedTuple

from bench.app import COST, ROWS
from bench.models.encoder import Encoder, texts
from bench.open_loop import quantile, send
from bench.policies.lateness import most_late
from bench.policies.loads import LOADS
from bench.reports.tables import Case, Effort, Goal, ResultTable
from bench.servers.stack import broker, running
from celery_batch.batching.batch import Request
from celery_batch.batching.batcher import Batcher
from celery_batch.batching.cost import CostLimits
from celery_batch.batching.policy import BatchPolicy

__all__ = ["CASE"]

_TEXTS = 4096

#: Outputs of batches and of single texts differ by rounding.
_TOLERANCE = 1e-3

#: Two rounds and the loads take four minutes.
_MOST_ROUNDS = 2

#: Parts of the row-counted worker's capacity, and seconds in which texts come so fast, in turns.
_PARTS, _SECONDS, _TURNS = (0.3, 0.6, 0.9), 20.0, 5

#: Texts by which the capacity is measured.
_TRIED = 768

#: The default of the option.
_SORT_WINDOW = 8

#: Seconds from when a batch is formed to when it begins, since its process may have to store the
#: results of another: who comes in these is not in it.
_FORMED = 0.05


class _Piece(NamedTuple):
    """What was sent to a worker in its turn, and what came back."""

    items: list[list[int]]
    times: list[float]
    outputs: list[Any]
    results: list[Any]


_CONTESTANTS = (*(f"rows{size}" for size in ROWS), "cost_limited")


def _measure(effort: Effort) -> dict[str, Any]:
    items = texts(effort.items(_TEXTS))
    model = Encoder()
    model.load("cpu")
    expected = [model.predict([item])[0][0] for item in items]
    rounds = []
    with broker():
        for _ in range(min(effort.rounds, _MOST_ROUNDS)):
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
        best_name = max((f"rows{size}" for size in ROWS), key=lambda name: rows[name]["rate"])
        names = (best_name, "cost_limited")
        loads = [
            load for part in _PARTS for load in _loads(names, part, effort.share, items, expected)
        ]
    return {"rows": rows, "rounds": rounds, "best": best_name, "loads": loads}


def _check(name: str, outputs: list[Any], expected: Iterable[float]) -> None:
    """Compare outputs with those of single texts."""
    pairs = zip(outputs, expected, strict=False)
    wrong = [output for (output, _), single in pairs if abs(output - single) > _TOLERANCE]
    if wrong:
        raise RuntimeError(f"{name}: {len(wrong)} outputs are not those of single texts")


@contextmanager
def _task(name: str) -> Iterator[Any]:
    """Yield a task with a worker."""
    with running("--concurrency=1", "-Q", f"bench-{name}") as stack:
        yield stack.app.tasks[f"bench.{name}"]


def _drain(name: str, items: list[list[int]], expected: list[float]) -> dict[str, float]:
    """Send all texts at once to a worker that counts in rows or in cost."""
    with _task(name) as task:
        began = time.monotonic()
        results = task.delay_many(items)
        outputs = [result.get(timeout=600) for result in results]
        seconds = time.monotonic() - began
    _check(name, outputs, expected)
    batches = _batches_of(items, outputs)
    return {
        "rate": len(items) / seconds,
        "batches": len(batches),
        "padding": _padded(batches) / sum(map(len, items)),
        "rows": len(items) / len(batches),
        "late": _late(items, outputs, results) if name == "cost_limited" else 0,
    }


def _loads(
    names: Sequence[str],
    part: float,
    share: float,
    items: list[list[int]],
    expected: list[float],
) -> list[dict[str, Any]]:
    """
    Send texts one by one when they come independently, in turn to the worker of each name.

    The rate is a part of what the first one does in the same minute, since the machine's speed
    varies.
    """
    with ExitStack() as stack:
        tasks = {name: stack.enter_context(_task(name)) for name in names}
        # Afterwards workers also know what a call costs.
        capacities = [_capacity(task, items[:_TRIED]) for task in tasks.values()]
        rate = part * capacities[0]
        pieces: dict[str, list[_Piece]] = {name: [] for name in names}
        for turn in range(_TURNS):
            count = max(int(rate * _SECONDS * share / _TURNS), 10)
            arrivals = [request.arrived for request in LOADS["Poisson"](rate, count, turn + 2)]
            first = turn * count % len(items)
            for name, task in tasks.items():
                texts_of_turn = list(islice(cycle(items), first, first + count))
                times, results = send(task, texts_of_turn, arrivals)
                outputs = [result.get(timeout=60) for result in results]
                _check(name, outputs, islice(cycle(expected), first, first + count))
                pieces[name].append(_Piece(texts_of_turn, times, outputs, results))
    return [_summary(name, part, rate, pieces[name]) for name in names]


def _capacity(task: Any, items: list[list[int]]) -> float:
    """Return how many texts a second a worker does of a backlog."""
    began = time.monotonic()
    for result in task.delay_many(items):
        result.get(timeout=60)
    return len(items) / (time.monotonic() - began)


def _summary(name: str, part: float, rate: float, pieces: list[_Piece]) -> dict[str, Any]:
    times = [seconds for piece in pieces for seconds in piece.times]
    tokens = sum(len(item) for piece in pieces for item in piece.items)
    padded = sum(_padded(_batches_of(piece.items, piece.outputs)) for piece in pieces)
    late = [_late(piece.items, piece.outputs, piece.results) for piece in pieces]
    return {
        "name": name,
        "part": part,
        "rate": rate,
        "p50": quantile(times, 0.5),
        "p99": quantile(times, 0.99),
        "worst": max(times),
        "padding": padded / tokens,
        "late": max(late) if name == "cost_limited" else 0,
    }


def _batches_of(items: list[list[int]], outputs: Sequence[Sequence[float]]) -> list[list[int]]:
    """Return the lengths of the texts of each batch, which began at one moment."""
    batches: dict[float, list[int]] = {}
    for item, (_, began) in zip(items, outputs, strict=True):
        batches.setdefault(began, []).append(len(item))
    return list(batches.values())


def _padded(batches: Sequence[Sequence[int]]) -> int:
    return sum(max(batch) * len(batch) for batch in batches)


def _late(items: list[list[int]], outputs: list[Any], results: list[Any]) -> int:
    """Return how many batches after first come, first served the latest request left."""
    began = [began for _, began in outputs]
    waits = [result.batch_info.wait for result in results]
    arrived = [start - wait + _FORMED for start, wait in zip(began, waits, strict=True)]
    return most_late(list(map(len, items)), arrived, began, CostLimits(1024, COST, is_padded=True))


def _loop(model: Encoder, policy: BatchPolicy, items: list[list[int]]) -> dict[str, float]:
    """Call the model directly, with the batches that the same rules form."""
    batches = list(_batches(policy, items))
    began = time.monotonic()
    for batch in batches:
        model.predict(batch)
    seconds = time.monotonic() - began
    padded = _padded([list(map(len, batch)) for batch in batches])
    return {
        "rate": len(items) / seconds,
        "batches": len(batches),
        "padding": padded / sum(map(len, items)),
        "rows": len(items) / len(batches),
        "late": 0,
    }


def _batches(policy: BatchPolicy, items: Sequence[list[int]]) -> Any:
    batcher: Batcher[list[int]] = Batcher(policy)
    for item in items:
        batcher.add(Request(item, 0.0, cost=float(len(item))))
    while len(batcher):
        yield batcher.next(inf).items  # type: ignore[union-attr]


def _tables(data: dict[str, Any]) -> list[ResultTable]:
    rows = [
        (name, f"{row['rate']:.0f}", f"{row['batches']:.0f}", f"{row['padding']:.2f}")
        for name, row in data["rows"].items()
    ]
    note = f"Log-normal lengths from 4 to 256 tokens; max_batch_cost={COST}, padded, sort_window=8."
    headings = ("batches", "texts/s", "batches", "padded/true")
    loads = [
        (
            f"{row['part']:g}: {row['rate']:.0f} texts/s, {row['name']}",
            *(f"{1000 * row[key]:.0f}" for key in ("p50", "p99", "worst")),
            f"{row['padding']:.2f}",
        )
        for row in data["loads"]
    ]
    about = f"Parts of the capacity of {data['best']}; milliseconds from sending to the result."
    return [
        ResultTable("A backlog of texts of unlike lengths", headings, rows, (note,)),
        ResultTable(
            "Such texts one by one, as they come",
            ("load", "p50", "p99", "longest", "padded/true"),
            loads,
            (about,),
        ),
    ]


def _goals(data: dict[str, Any]) -> list[Goal]:
    rows = data["rows"]
    best = max(rows[f"rows{size}"]["rate"] for size in ROWS)
    gain = rows["cost_limited"]["rate"] / best
    of_loop = rows["loop, cost"]["rate"] / rows["loop, rows"]["rate"]
    late = max(row["late"] for row in (*rows.values(), *data["loads"]))
    return [
        Goal("by cost, of the best size in rows", gain, 2.2, unit=" x"),
        Goal("share of the plain loop's gain", gain / of_loop, 0.9),
        Goal("padded/true", rows["cost_limited"]["padding"], 1.6, most=True),
        *_load_goals(data),
        Goal("batches after first come, first served", late, _SORT_WINDOW, most=True),
    ]


def _load_goals(data: dict[str, Any]) -> Iterator[Goal]:
    by_name = {(row["part"], row["name"]): row for row in data["loads"]}
    for part in _PARTS:
        cost, rows = by_name[part, "cost_limited"], by_name[part, data["best"]]
        for key in ("p50", "p99"):
            bound = 0.5 if (part, key) == (_PARTS[-1], "p99") else 1.0
            what = f"at {part:g} {key} by cost, of that by rows"
            yield Goal(what, cost[key] / rows[key], bound, most=True)


CASE = Case(
    "lengths", "texts of unlike lengths, by rows and by cost", _measure, _tables, _goals,
    by_default=False,
)  # fmt: skip
