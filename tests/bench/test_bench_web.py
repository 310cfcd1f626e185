"""The comparison of web servers: its table, its goals, and what the servers are asked."""

from __future__ import annotations

import json

import celery

from bench import document
from bench.cases.web import CASE
from bench.http_servers import Query
from bench.tables import Effort
from bench.versions import server_versions


def row(name, rate):
    """Return what was measured of a server in three rounds."""
    rates = [rate - 10, rate, rate + 20]
    figures = {"p50": 0.05, "p99": 0.1, "cpu": 0.0005, "redis": 0.00004}
    return {"name": name, "rates": rates, "rate": rate, "errors": "", **figures}


def test_table_has_the_median_and_the_spread():
    """A row has the median of the rounds, the worst and the best, and Redis' CPU for itself."""
    data = {"versions": {"celery": "5.7.0"}, "rows": [row("mosec", 3000.0)]}

    (table,) = CASE.tables(data)

    cells = ("mosec", "3,000", "2,990", "3,020", "50.0", "100.0", "0.50", "0.04")
    assert [cells] == table.rows
    assert "Versions: celery 5.7.0." == table.notes[-1]


def test_goals_compare_with_the_best_peers():
    """The fastest peer has a goal of its own; of a library in two ways, the faster one counts."""
    ours = [row("ours: FastAPI, uvicorn", 3000.0), row("ours: Flask, gevent", 1800.0)]
    peers = [row("LitServe", 1500.0), row("mosec", 4000.0)]
    streamers = [row("service-streamer: Threaded", 1000.0), row("service-streamer: Redis", 1200.0)]

    goals = CASE.goals({"rows": [*ours, *peers, *streamers]})

    assert "FastAPI over mosec, the fastest" == goals[0].what
    assert [0.75, 2.0, 1.5] == [goal.measured for goal in goals]


def test_goals_without_peers_are_not_measured():
    """A run of ours alone compares with nothing."""
    ours = [row("ours: FastAPI, uvicorn", 3000.0), row("ours: Flask, gevent", 1800.0)]

    assert {"not measured"} == {goal.met for goal in CASE.goals({"rows": ours})}


def test_query_is_written_for_wrk(tmp_path):
    """The script posts the query's body with its type; quotes in it are escaped."""
    script = tmp_path / "query.lua"

    Query("/predict", '{"x": 3}', "application/json", {"y": 6}).write_script(script)

    assert [
        'wrk.method = "POST"',
        'wrk.body = "{\\"x\\": 3}"',
        'wrk.headers["Content-Type"] = "application/json"',
    ] == script.read_text().splitlines()


def test_measurement_says_what_was_measured():
    """What is kept of a run names the commit and the libraries' versions."""
    assert celery.__version__ == server_versions(servers_of_peers=False)["celery"]
    about = json.loads(json.dumps(document.about(Effort(peers=False))))
    names = {"commit", "cpu", "python", "celery", "kombu", "redis", "redis_server"}
    assert names <= {name for name, said in about.items() if said}
