"""Web servers over HTTP with wrk: ours in front of a worker, and the peers'."""

from __future__ import annotations

from statistics import median
from typing import Any

from bench.models.reference import BATCH
from bench.reports.tables import Case, Effort, Goal, ResultTable
from bench.reports.versions import server_versions
from bench.servers.http_servers import HTTP_SERVERS, RunningServer, running_server
from bench.servers.testbed import testbed
from bench.servers.wrk import find_wrk, run_wrk

__all__ = ["CASE"]

#: Clients that ask at the same time: a batch is in the model, and the next one fills.
_CLIENTS = 128

#: Seconds of a full batch of the "cost" model.
_BATCH_SECONDS = 0.010 + 0.0001 * BATCH

#: Seconds of one measurement, and before it.
_SECONDS, _WARM_UP = 8, 2

_FLASK, _FASTAPI = "ours: Flask, gevent", "ours: FastAPI, uvicorn"


def _measure(effort: Effort) -> dict[str, Any]:
    find_wrk()
    servers = [each for each in HTTP_SERVERS if effort.peers or each.is_ours]
    rounds: dict[str, list[dict[str, Any]]] = {each.name: [] for each in servers}
    with testbed() as bed:
        for _ in range(effort.rounds):
            for server in servers:
                # One at a time: an idle one would still use some of the CPU.
                with running_server(server, bed.redis, bed.url()) as running:
                    rounds[server.name].append(_round(running, effort))
    return {
        "versions": server_versions(servers_of_peers=effort.peers),
        "rows": [_row(name, each) for name, each in rounds.items()],
    }


def _round(server: RunningServer, effort: Effort) -> dict[str, Any]:
    seconds = max(1, round(_SECONDS * effort.share))
    run_wrk(server.url, clients=_CLIENTS, seconds=_WARM_UP, script=server.script)
    cpu, redis = server.cpu(), server.redis_cpu()
    report = run_wrk(server.url, clients=_CLIENTS, seconds=seconds, script=server.script)
    requests = report.rate * seconds
    return {
        "rate": report.rate,
        "p50": report.latency[50],
        "p99": report.latency[99],
        "cpu": (server.cpu() - cpu) / requests,
        "redis": (server.redis_cpu() - redis) / requests,
        "errors": report.errors,
    }


def _row(name: str, rounds: list[dict[str, Any]]) -> dict[str, Any]:
    keys = ("rate", "p50", "p99", "cpu", "redis")
    figures = {key: median(each[key] for each in rounds) for key in keys}
    errors = "; ".join(each["errors"] for each in rounds if each["errors"])
    return {
        "name": name,
        "rates": [each["rate"] for each in rounds],
        "errors": errors,
        **figures,
    }


def _sheets(data: dict[str, Any]) -> list[ResultTable]:
    headings = ("", "requests/s", "min", "max", "p50 ms", "p99 ms", "CPU ms", "Redis ms")
    notes = [
        f'{_CLIENTS} clients in a closed loop, one input a request, the model "cost".',
        f"The model itself answers {BATCH / _BATCH_SECONDS:,.0f} a second, in full batches.",
        "Two web processes for each but mosec, which has one in Rust, and ThreadedStreamer.",
        "CPU is that of a request in all processes but wrk and Redis; Redis is beside it.",
    ]
    notes += [f"{row['name']}: {row['errors']}." for row in data["rows"] if row["errors"]]
    rows = [_cells(row) for row in data["rows"]]
    return [
        ResultTable("Over HTTP with wrk", headings, rows, (*notes, _versions(data["versions"])))
    ]


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    rates = (row["rate"], min(row["rates"]), max(row["rates"]))
    latency = (row["p50"], row["p99"])
    return (
        row["name"].replace("ours:", "celery_batch:"),
        *(f"{rate:,.0f}" for rate in rates),
        *(f"{1000 * seconds:.1f}" for seconds in latency),
        *(f"{1000 * row[key]:.2f}" for key in ("cpu", "redis")),
    )


def _versions(found: dict[str, str]) -> str:
    return f"Versions: {', '.join(f'{name} {version}' for name, version in found.items())}."


def _goals(data: dict[str, Any]) -> list[Goal]:
    rates = {row["name"]: row["rate"] for row in data["rows"]}

    def ratio(ours: str, peer: str) -> float | None:
        theirs = [rate for name, rate in rates.items() if name.startswith(peer)]
        return float(rates[ours] / max(theirs)) if theirs else None

    peers = {name: rate for name, rate in rates.items() if not name.startswith("ours")}
    best = max(peers, key=peers.__getitem__, default="the best peer")
    return [
        Goal(f"FastAPI over {best}, the fastest", ratio(_FASTAPI, best), 1, unit=" times"),
        Goal("FastAPI over LitServe: requests/s", ratio(_FASTAPI, "LitServe"), 2, unit=" times"),
        Goal(
            "Flask, gevent, over service-streamer: requests/s",
            ratio(_FLASK, "service-streamer"),
            1.5,
            unit=" times",
        ),
    ]


CASE = Case("web", "web servers over HTTP, ours and the peers'", _measure, _sheets, _goals)
