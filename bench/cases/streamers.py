"""Our streamers of one machine beside service-streamer's: the same calls, the same models."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from bench.reports.tables import Case, Effort, Goal, ResultTable, shown, spread
from bench.servers.testbed import OURS, testbed

__all__ = ["CASE"]

#: Ours, and whom each is held against.
_RIVALS = {"our ThreadedStreamer": "ThreadedStreamer", "our Streamer": "Streamer"}

_ALL = ("pure", *_RIVALS, *_RIVALS.values())

#: How many items of each model a round sends.
_ITEMS = {"noop": 12_800, "cost": 6_400, "bert": 6_400}

_WORKERS = (1, 2, 4)


def _measure(effort: Effort) -> dict[str, Any]:
    kinds = [kind for kind in _ALL if effort.peers or kind in OURS]
    processes = [kind for kind in kinds if not kind.endswith("ThreadedStreamer")]
    rows = _drained("noop", 1, kinds[1:], effort) + _drained("cost", 1, kinds, effort)
    for workers in _WORKERS:
        rows += _drained("bert", workers, processes, effort)
    return {"rows": rows, "lone": _lone(kinds[1:], effort)}


def _drained(
    model: str, workers: int, kinds: Sequence[str], effort: Effort
) -> list[dict[str, Any]]:
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    cpu: dict[str, list[float]] = {kind: [] for kind in kinds}
    with testbed() as bed, bed.systems([*kinds], model, workers) as systems:
        for kind, system in systems.items():
            system.ask("drain", n=effort.items(_wanted(kind, model, workers) // 10), singly=True)
        for _ in range(effort.rounds):
            for kind, system in systems.items():
                n = effort.items(_wanted(kind, model, workers))
                one = system.ask("drain", n=n, singly=True)
                times = workers if kind == "pure" else 1
                rates[kind].append(times * one["n"] / one["seconds"])
                cpu[kind].append((one["client_cpu"] + one["worker_cpu"]) / one["n"])
    return [
        {"model": model, "workers": workers, "kind": kind, "rates": rates[kind],
         "rate": median(rates[kind]), "cpu": median(cpu[kind])}
        for kind in kinds
    ]  # fmt: skip


def _wanted(kind: str, model: str, workers: int) -> int:
    # The pure loop is one process: what k of them do is k times as much.
    return _ITEMS[model] // (workers if kind == "pure" else 1)


def _lone(kinds: Sequence[str], effort: Effort) -> dict[str, float]:
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    with testbed() as bed, bed.systems([*kinds], "noop") as systems:
        for system in systems.values():
            system.ask("lone", n=5)
        for _ in range(effort.rounds):
            for kind, system in systems.items():
                times[kind] += system.ask("lone", n=effort.items(40))["times"]
    return {kind: median(each) for kind, each in times.items()}


def _rate(data: dict[str, Any], kind: str, model: str, workers: int = 1) -> float | None:
    wanted = (kind, model, workers)
    found = (one for one in data["rows"] if (one["kind"], one["model"], one["workers"]) == wanted)
    return next((float(one["rate"]) for one in found), None)


def _sheets(data: dict[str, Any]) -> list[ResultTable]:
    rows = []
    for row in data["rows"]:
        pure = _rate(data, "pure", row["model"], row["workers"])
        share = f"{row['rate'] / pure:.3f}" if pure else ""
        rates = (f"{row['rate']:,.0f}", spread(row["rates"]))
        figures = (*rates, share, f"{1000 * row['cpu']:.4f}")
        rows.append((shown(row["kind"]), row["model"], str(row["workers"]), *figures))
    headings = (
        "",
        "model",
        "workers",
        "items/s",
        "slowest to fastest",
        "of the model alone",
        "CPU ms",
    )
    note = "Medians of interleaved rounds; CPU is of all processes, for each item."
    lone = [(shown(kind), f"{1000 * seconds:.1f}") for kind, seconds in data["lone"].items()]
    return [
        ResultTable(
            "Streamers of one machine, one item a request, batches of 64", headings, rows, (note,)
        ),
        ResultTable("A lone request to an idle streamer, max_latency=0.1", ("", "p50 ms"), lone),
    ]


def _goals(data: dict[str, Any]) -> list[Goal]:
    goals = []
    for kind, times, most in (("our ThreadedStreamer", 2, 3), ("our Streamer", 3, 5)):
        theirs = _ratio(data, kind, _RIVALS[kind], "noop")
        goals += [
            Goal(f'"noop": {kind} over service-streamer\'s', theirs, times, unit=" times"),
            Goal(f'"cost": {kind}, of pure', _ratio(data, kind, "pure", "cost"), 0.97),
            Goal(f"a lone request: {kind}", 1000 * data["lone"][kind], most, unit=" ms", most=True),
        ]
    for workers in _WORKERS:
        share = _ratio(data, "our Streamer", "pure", "bert", workers)
        goals.append(Goal(f'"bert" on {workers} workers: our Streamer, of pure', share, 0.98))
    return goals


def _ratio(
    data: dict[str, Any], kind: str, other: str, model: str, workers: int = 1
) -> float | None:
    ours, theirs = _rate(data, kind, model, workers), _rate(data, other, model, workers)
    return ours / theirs if ours and theirs else None


CASE = Case(
    "streamers", "streamers of one machine, and service-streamer's", _measure, _sheets, _goals
)
