"""How soon `celery batch serve` is whole again, after one of its processes was killed."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from bench.reports.tables import Case, Effort, Goal, ResultTable
from bench.servers.testbed import free_port
from celery_batch.cli.deployment import Deployment
from celery_batch.processes.supervisor import STEADY
from celery_batch.serve.config import ServeConfig
from celery_batch.serve.handle import Handle

__all__ = ["CASE", "Pid"]

_KILLED = ("cpu-0", "web", "redis")

#: Seconds between two looks, and until we give up.
_LOOK, _TIMEOUT = 0.02, 60.0

#: Seconds in which an end is an early exit, and one more.
_STEADY = STEADY + 1.0


class Pid(Handle):
    """Answers with the process that it runs in."""

    def forward(self, batch: list[Any]) -> list[int]:
        """Say which process this is."""
        return [os.getpid()] * len(batch)


def _measure(effort: Effort) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="cb-") as folder:
        config = ServeConfig(f"{__name__}:Pid", port=free_port(), queue="bench")
        with Deployment(config, Path(folder) / "run") as deployment:
            deployment.start(Path.cwd())
            deployment.wait_until_ready()
            rounds: dict[str, list[dict[str, float]]] = {name: [] for name in _KILLED}
            for _ in range(effort.rounds):
                time.sleep(_STEADY)  # after an early exit there is a pause
                for name, looks in rounds.items():
                    looks.append(_strike(deployment, name))
    return {"rounds": rounds}


def _strike(deployment: Deployment, name: str) -> dict[str, float]:
    """Kill a process; return after how many seconds another one runs, and requests are served."""
    former = _pid(deployment, name)
    os.kill(former, signal.SIGKILL)
    killed = time.monotonic()
    _until(lambda: _pid(deployment, name) not in (0, former))
    runs = time.monotonic() - killed
    _until(lambda: _is_served(deployment.url))
    return {"runs": runs, "serves": time.monotonic() - killed}


def _pid(deployment: Deployment, name: str) -> int:
    deployment.check()
    reaper = next(each.status().pid for each in deployment.processes if each.name == name)
    with suppress(psutil.NoSuchProcess):
        return next((child.pid for child in psutil.Process(reaper).children()), 0)
    return 0


def _is_served(url: str) -> bool:
    request = urllib.request.Request(url, json.dumps({}).encode())  # noqa: S310 (our own server)
    with suppress(OSError, urllib.error.URLError):
        urllib.request.urlopen(request, timeout=_TIMEOUT).close()  # noqa: S310 (likewise)
        return True
    return False


def _until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while not is_so():
        if time.monotonic() > deadline:
            raise AssertionError("it is not served again")
        time.sleep(_LOOK)


def _of(data: dict[str, Any], name: str, what: str) -> float:
    return float(median(each[what] for each in data["rounds"][name]))


def _sheets(data: dict[str, Any]) -> list[ResultTable]:
    rows = [
        (name, *(f"{_of(data, name, what):.2f}" for what in ("runs", "serves")))
        for name in data["rounds"]
    ]
    headings = ("killed", "another runs after", "requests are served after")
    return [ResultTable("`celery batch serve`: seconds from a SIGKILL", headings, rows)]


def _goals(data: dict[str, Any]) -> list[Goal]:
    return [
        Goal(f"serve: a killed {name} is back", _of(data, name, "runs"), 3, unit=" s", most=True)
        for name in data["rounds"]
    ]


CASE = Case(
    "serve", "how soon killed processes of `celery batch serve` are back", _measure, _sheets,
    _goals, by_default=False,
)  # fmt: skip
