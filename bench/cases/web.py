"""Web servers over HTTP with wrk: ours in front of a worker, and the peers'."""

from __future__ import annotations

from statistics import median
from typing import Any

from bench.contestants import CONTESTANTS, Contestant, Site, site
from bench.model import BATCH
from bench.sheet import Case, Effort, Goal, Sheet
from bench.stage import stage
from bench.wrk import find_wrk, run_wrk

__all__ = ["CASE"]

#: Who ask at the same time: a batch is in the model, and the next one fills.
_CLIENTS = 128

#: Seconds of a full batch of the "cost" model.
_BATCH_SECONDS = 0.010 + 0.0001 * BATCH

#: Of one measurement.
_SECONDS = 8

_FLASK, _ASGI = "ours: Flask, gthread that parks", "ours: FastAPI, uvicorn"
_SERVICE_STREAMER, _LITSERVE = "service-streamer, Flask", "LitServe"


def _measure(effort: Effort) -> dict[str, Any]:
    find_wrk()
    playing = [each for each in CONTESTANTS if effort.peers or each.is_ours]
    reports: dict[str, list[Any]] = {each.name: [] for each in playing}
    with stage() as ground:
        for _ in range(effort.rounds):
            for each in playing:
                # One at a time: a server that only waits would take its share of two cores, too.
                with site(each, ground.url()) as place:
                    reports[each.name].append(_asked(place, each, effort))
    return {"rows": [_row(name, each) for name, each in reports.items()]}


def _asked(place: Site, who: Contestant, effort: Effort) -> dict[str, Any]:
    seconds = max(1, round(_SECONDS * effort.share))
    run_wrk(place.url, clients=_CLIENTS, seconds=2, script=who.script)
    before = place.cpu()
    report = run_wrk(place.url, clients=_CLIENTS, seconds=seconds, script=who.script)
    cpu = (place.cpu() - before) / (report.rate * seconds)
    return {"rate": report.rate, "errors": report.errors, "cpu": cpu, "p50": report.latency[50],
            "p99": report.latency[99]}  # fmt: skip


def _row(name: str, reports: list[dict[str, Any]]) -> dict[str, Any]:
    figures = {key: median(each[key] for each in reports) for key in ("rate", "p50", "p99", "cpu")}
    errors = "; ".join(each["errors"] for each in reports if each["errors"])
    return {"name": name, "rates": [each["rate"] for each in reports], "errors": errors, **figures}


def _sheets(data: dict[str, Any]) -> list[Sheet]:
    headings = ("", "requests/s", "p50 ms", "p99 ms", "CPU ms")
    rows = [
        (
            row["name"],
            f"{row['rate']:,.0f}",
            f"{1000 * row['p50']:.1f}",
            f"{1000 * row['p99']:.1f}",
            f"{1000 * row['cpu']:.2f}",
        )
        for row in data["rows"]
    ]
    notes = [f'{_CLIENTS} clients in a closed loop, one input a request, the model "cost".']
    notes += [f"The model itself answers {BATCH / _BATCH_SECONDS:,.0f} a second, in full batches."]
    notes += ["CPU is of all processes but wrk and Redis, for each request."]
    notes += [f"{row['name']}: {row['errors']}." for row in data["rows"] if row["errors"]]
    return [Sheet("Over HTTP with wrk", headings, rows, tuple(notes))]


def _goals(data: dict[str, Any]) -> list[Goal]:
    rows = {row["name"]: row for row in data["rows"]}

    def ratio(ours: str, theirs: str, key: str = "rate") -> float | None:
        if theirs not in rows:
            return None
        return float(rows[ours][key] / rows[theirs][key])

    flask = "Flask and gthread that parks over service-streamer's Flask"
    asgi = "FastAPI and uvicorn over LitServe"
    return [
        Goal(f"{flask}: requests/s", ratio(_FLASK, _SERVICE_STREAMER), 2, unit=" times"),
        Goal(f"{flask}: p99", ratio(_FLASK, _SERVICE_STREAMER, "p99"), 0.5, most=True),
        Goal(f"{asgi}: requests/s", ratio(_ASGI, _LITSERVE), 2.5, unit=" times"),
    ]


CASE = Case("web", "web servers over HTTP, ours and the peers'", _measure, _sheets, _goals)
