"""service-streamer's published tables, made again: over the web, and through futures."""

from __future__ import annotations

from statistics import median
from typing import Any

from bench.models.reference import BATCH
from bench.reports.tables import Case, Effort, ResultTable, spread
from bench.servers.http_servers import example_server, running_server
from bench.servers.testbed import Testbed, testbed
from bench.servers.workers_ready import wait_for_workers
from bench.servers.wrk import find_wrk, run_wrk
from celery_batch.streamer import RedisStreamer
from examples.infill_redis import PREFIX

__all__ = ["CASE"]

#: Published: BERT on Titan Xp GPUs, batches of 64; a plain batched loop on one of them.
_THEIR_PURE = 422.88

#: Published requests a second over the web, by kind and GPUs.
_WEB = {
    ("naive", 1): 12.78,
    ("threaded", 1): 207.59,
    ("streamer", 1): 321.70,
    ("redis", 1): 372.45,
    ("redis", 2): 609.63,
    ("redis", 4): 1034.57,
}

#: Published items a second through futures, by kind and GPUs.
_FUTURES = {
    ("pure", 1): _THEIR_PURE,
    ("streamer", 1): 399.26,
    ("streamer", 2): 742.16,
    ("streamer", 4): 1400.12,
    ("redis", 1): 384.79,
    ("redis", 2): 714.78,
    ("redis", 4): 1356.47,
}

#: The system of each name in the tables.
_SYSTEMS = {"pure": "pure", "streamer": "our Streamer", "redis": "our RedisStreamer"}

_WORKERS = (1, 2, 4)

#: Clients for each worker: a batch is in the model, and the next one fills.
_CLIENTS = 128

#: Of one measurement: seconds over the web; batches for each worker through futures.
_SECONDS, _BATCHES = 5, 22


def _measure(effort: Effort) -> dict[str, Any]:
    find_wrk()
    with testbed() as bed:
        futures = [row for count in _WORKERS for row in _through_futures(bed, count, effort)]
        over_web = [_over_web(bed, *server, effort) for server in _WEB]
    pure = next(row["rate"] for row in futures if row["kind"] == "pure")
    return {"pure": pure, "web": over_web, "futures": futures}


def _over_web(bed: Testbed, kind: str, workers: int, effort: Effort) -> dict[str, Any]:
    seconds = max(1, round(_SECONDS * effort.share))
    clients, reports, url = _CLIENTS * workers, [], bed.url()
    with running_server(example_server(kind, workers), bed.redis, url) as site:
        if kind == "redis":
            app = RedisStreamer(url, prefix=PREFIX).app
            wait_for_workers(app, workers, site.children)
        run_wrk(site.url, clients=clients, seconds=2)
        for _ in range(effort.rounds):
            site.settle()
            reports.append(run_wrk(site.url, clients=clients, seconds=seconds))
    return {
        "kind": kind,
        "workers": workers,
        "rates": [report.rate for report in reports],
        "rate": median(report.rate for report in reports),
        "errors": "; ".join(filter(None, (report.errors for report in reports))),
    }


def _through_futures(bed: Testbed, workers: int, effort: Effort) -> list[dict[str, Any]]:
    kinds = [kind for kind, count in _FUTURES if count == workers]
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    n = BATCH * workers * max(2, round(_BATCHES * effort.share))
    with bed.systems([_SYSTEMS[kind] for kind in kinds], "bert", workers) as systems:
        for system in systems.values():
            system.ask("drain", n=BATCH * workers, singly=True)
        for _ in range(effort.rounds):
            for kind in kinds:
                rates[kind].append(
                    n / systems[_SYSTEMS[kind]].ask("drain", n=n, singly=True)["seconds"]
                )
    return [
        {"kind": kind, "workers": workers, "rates": each, "rate": median(each)}
        for kind, each in rates.items()
    ]


def _sheets(data: dict[str, Any]) -> list[ResultTable]:
    return [
        _table("Over HTTP with wrk, one sentence a request", "requests/s", data["web"], _WEB, data),
        _table("Through futures, one item a submit", "items/s", data["futures"], _FUTURES, data),
    ]


def _table(
    title: str,
    unit: str,
    rows: list[dict[str, Any]],
    published: dict[tuple[str, int], float],
    data: dict[str, Any],
) -> ResultTable:
    headings = (
        "",
        "workers",
        unit,
        "slowest to fastest",
        "of pure",
        f"seeds' {unit}",
        "seeds' of pure",
    )
    cells = []
    for row in rows:
        theirs, workers = published[row["kind"], row["workers"]], row["workers"]
        shares = row["rate"] / (workers * data["pure"]), theirs / (workers * _THEIR_PURE)
        rates = (f"{row['rate']:,.0f}", spread(row.get("rates", [])))
        figures = (*rates, f"{shares[0]:.2f}", f"{theirs:,.0f}", f"{shares[1]:.2f}")
        cells.append((row["kind"], str(workers), *figures))
    return ResultTable(title, headings, cells, tuple(_notes(rows)))


def _notes(rows: list[dict[str, Any]]) -> list[str]:
    notes = ["Workers of ours sleep where theirs had a GPU each; pure is k times that of one."]
    notes += [
        f"{row['kind']} on {row['workers']}: {row['errors']}." for row in rows if row.get("errors")
    ]
    return notes


CASE = Case(
    "seeds",
    "service-streamer's published tables: over the web with wrk, through futures",
    _measure,
    _sheets,
    by_default=False,
)
