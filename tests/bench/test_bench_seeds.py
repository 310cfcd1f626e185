"""service-streamer's tables made again: the shares in them, and wrk's words."""

from __future__ import annotations

import subprocess

import pytest

from bench import wrk
from bench.cases import seeds

#: What wrk prints.
SAID = """Running 1s test @ http://127.0.0.1:5005/stream
  2 threads and 8 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency    21.72ms    1.10ms  28.41ms   91.11%
    Req/Sec   183.60     10.00   202.00     80.00%
  368 requests in 1.00s, 61.09KB read
{errors}Requests/sec:    366.87
Transfer/sec:     60.90KB
"""


@pytest.fixture
def says(monkeypatch):
    """Have wrk say what a test wants."""

    def says(words):
        done = subprocess.CompletedProcess([], 0, words, "unable to connect")
        monkeypatch.setattr(wrk.subprocess, "run", lambda *_, **__: done)
        monkeypatch.setattr(wrk, "find_wrk", lambda: "wrk")

    return says


def test_shares_stand_beside_the_published_ones():
    """A row has its share of as many pure loops as it has workers, and so has the published one."""
    redis = {
        "kind": "redis",
        "workers": 4,
        "rate": 1352.0,
        "rates": [1340.0, 1352.0],
        "errors": "Non-2xx: 3",
    }
    data = {"pure": 422.5, "web": [redis], "futures": []}

    web, _ = seeds._sheets(data)

    assert [("redis", "4", "1,352", "1,340 to 1,352", "0.80", "1,035", "0.61")] == web.rows
    assert "redis on 4: Non-2xx: 3." == web.notes[-1]


def test_published_shares_are_those_that_the_seeds_name():
    """Through futures theirs have 94 % of the pure speed on one GPU and 83 % on four."""
    rows = [{"kind": "streamer", "workers": workers, "rate": 1.0} for workers in (1, 4)]

    _, futures = seeds._sheets({"pure": 1.0, "web": [], "futures": rows})

    assert ["0.94", "0.83"] == [row[-1] for row in futures.rows]


def test_rate_and_errors_are_read(says):
    """Wrk's rate is read, and each of its lines about errors."""
    says(SAID.format(errors="  Socket errors: connect 0, timeout 2\n  Non-2xx or 3xx: 7\n"))

    report = wrk.run_wrk("http://127.0.0.1/", clients=8, seconds=1)

    errors = "Socket errors: connect 0, timeout 2; Non-2xx or 3xx: 7"
    assert wrk.Report(366.87, errors) == report


def test_silence_is_a_failure(says):
    """Where wrk gives no rate, its own words are the error."""
    says("")

    with pytest.raises(wrk.WrkFailed, match="unable to connect"):
        wrk.run_wrk("http://127.0.0.1/", clients=8, seconds=1)


def test_latencies_are_read_in_each_unit(says):
    """Wrk writes microseconds to minutes, and a space behind seconds."""
    lines = "  Latency Distribution\n     50%  940.00us\n     90%   23.70ms\n     99%    1.07s \n"
    says(SAID.format(errors=lines))

    report = wrk.run_wrk("http://127.0.0.1/", clients=8, seconds=1)

    assert {50: 940e-6, 90: 0.0237, 99: 1.07} == pytest.approx(report.latency)
