"""Single calls: how fast they are sent, how long a lone one takes, and many rows in one."""

from __future__ import annotations

from statistics import median
from typing import Any

from bench.reports.tables import Case, Effort, Goal, ResultTable, shown, spread
from bench.servers.testbed import OURS, testbed

__all__ = ["CASES"]

_SENDERS = {"ours": 6400, "stock client": 1280, "celery": 1280}
_LONERS = ("pure", "ours", "celery", "celery-batches", "RedisStreamer")
_ROWS = 256


def _of(kinds: tuple[str, ...], effort: Effort) -> list[str]:
    return [kind for kind in kinds if effort.peers or kind in OURS]


def _measure_submit(effort: Effort) -> dict[str, Any]:
    kinds = _of(tuple(_SENDERS), effort)
    rounds: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    with testbed() as bed, bed.systems(kinds, "noop") as systems:
        for system in systems.values():
            system.ask("submit", n=effort.items(128))
        for _ in range(effort.rounds):
            for kind, system in systems.items():
                rounds[kind].append(system.ask("submit", n=effort.items(_SENDERS[kind])))
    rows = []
    for kind, each in rounds.items():
        rates = [one["n"] / one["seconds"] for one in each]
        cpu = median(one["client_cpu"] / one["n"] for one in each)
        rows.append({"kind": kind, "rates": rates, "rate": median(rates), "client_cpu": cpu})
    return {"rows": rows}


def _submit_sheets(data: dict[str, Any]) -> list[ResultTable]:
    rows = [
        (
            shown(row["kind"]),
            f"{row['rate']:,.0f}",
            spread(row["rates"]),
            f"{1000 * row['client_cpu']:.3f}",
        )
        for row in data["rows"]
    ]
    headings = ("", "submits/s", "slowest to fastest", "client ms")
    title = '"noop", one delay() at a time, while a worker works'
    return [ResultTable(title, headings, rows)]


def _submit_goals(data: dict[str, Any]) -> list[Goal]:
    rates = {row["kind"]: row["rate"] for row in data["rows"]}
    ratio = rates["ours"] / max(rate for kind, rate in rates.items() if kind != "ours")
    return [Goal('"noop", one delay() at a time: over Celery\'s client', ratio, 4, unit=" times")]


def _measure_lone(effort: Effort) -> dict[str, Any]:
    rows = []
    for model in ("noop", "cost"):
        kinds = _of(_LONERS, effort)
        with testbed() as bed, bed.systems(kinds, model) as systems:
            times: dict[str, list[float]] = {kind: [] for kind in kinds}
            for system in systems.values():
                system.ask("lone", n=5)
            for _ in range(effort.rounds):
                for kind, system in systems.items():
                    times[kind] += system.ask("lone", n=effort.items(40))["times"]
        own = median(times["pure"])
        for kind in kinds[1:]:
            each = sorted(times[kind])
            p50, p99 = median(each), each[int(len(each) * 0.99)]
            rows.append({"kind": kind, "model": model, "own": own, "p50": p50, "p99": p99})
    return {"rows": rows}


def _lone_sheets(data: dict[str, Any]) -> list[ResultTable]:
    rows = [
        (
            shown(row["kind"]),
            row["model"],
            *(f"{1000 * row[name]:.1f}" for name in ("own", "p50", "p99")),
            f"{1000 * (row['p50'] - row['own']):.1f}",
        )
        for row in data["rows"]
    ]
    headings = ("", "model", "model's own", "p50", "p99", "p50 above the model")
    return [
        ResultTable("A lone request to an idle worker, max_wait=0.1 (milliseconds)", headings, rows)
    ]


def _lone_goals(data: dict[str, Any]) -> list[Goal]:
    above = max(row["p50"] - row["own"] for row in data["rows"] if row["kind"] == "ours")
    what = "lone request over the model's own time, p50"
    return [Goal(what, 1000 * above, 5, 3, " ms", most=True)]


def _measure_chunk(effort: Effort) -> dict[str, Any]:
    rates: dict[str, list[float]] = {"pure": [], "ours": []}
    n = effort.items(6400)
    with testbed() as bed, bed.systems(["pure", "ours"], "cost") as systems:
        systems["ours"].ask("chunk", n=_ROWS, rows=_ROWS)
        for _ in range(effort.rounds):
            rates["pure"].append(n / systems["pure"].ask("drain", n=n)["seconds"])
            rates["ours"].append(n / systems["ours"].ask("chunk", n=n, rows=_ROWS)["seconds"])
    return {"rates": rates}


def _chunk_sheets(data: dict[str, Any]) -> list[ResultTable]:
    rates = data["rates"]
    rows = [
        (
            shown(kind),
            f"{median(each):,.0f}",
            spread(each),
            f"{median(each) / median(rates['pure']):.3f}",
        )
        for kind, each in rates.items()
    ]
    headings = ("", "rows/s", "slowest to fastest", "of the model alone")
    return [ResultTable(f'"cost", delay_rows of {_ROWS} rows', headings, rows)]


def _chunk_goals(data: dict[str, Any]) -> list[Goal]:
    rates = data["rates"]
    ratio = median(rates["ours"]) / median(rates["pure"])
    return [Goal(f'"cost", delay_rows of {_ROWS} rows: of pure', ratio, 0.97)]


CASES = [
    Case(
        "submit",
        "one delay() after another: how many a second",
        _measure_submit,
        _submit_sheets,
        _submit_goals,
    ),
    Case("lone", "one request to an idle worker", _measure_lone, _lone_sheets, _lone_goals),
    Case("chunk", "many rows in one task", _measure_chunk, _chunk_sheets, _chunk_goals),
]
