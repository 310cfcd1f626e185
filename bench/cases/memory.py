"""Memory of the worker and the web process over many requests: it must not grow."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import psutil

from bench.tables import Case, Effort, ResultTable
from demo.load import Question, run_load
from demo.servers import Servers

__all__ = ["CASE"]

_REQUESTS = 50_000

#: Requests before the first look: caches fill, all threads of the web server have
#: worked, allocators settle.
_WARM_UP = 10_000

_STEP = 5_000
_CLIENTS = 64
_SERVERS = ("web", "worker")
_QUESTION = Question("twinkle twinkle [MASK] star.", "little")


def _measure(effort: Effort) -> dict[str, Any]:
    with Servers() as servers:
        servers.start()
        url = f"{servers.web_url}/stream"
        _send(url, effort.items(_WARM_UP), servers)
        looks = [_look(servers)]
        for _ in range(_STEP, _REQUESTS + 1, _STEP):
            _send(url, effort.items(_STEP), servers)
            looks.append(_look(servers))
    return {"sizes": {name: [look[name] for look in looks] for name in looks[0]}}


def _send(url: str, requests: int, servers: Servers) -> None:
    load = run_load(
        url, itertools.repeat(_QUESTION, requests), clients=_CLIENTS, check=servers.check
    )
    if load.errors:
        raise AssertionError(load.errors[:3])


def _look(servers: Servers) -> dict[str, int]:
    """Return the bytes that the processes of the web server and the worker have to themselves."""
    sizes: Counter[str] = Counter()
    for child in servers.children:
        if child.name in _SERVERS:
            for process in psutil.Process(child.pid).children(recursive=True):
                role = "main process" if process.children() else "process"
                sizes[f"{child.name} {role}"] += process.memory_full_info().uss
    return dict(sizes)


def _sheets(data: dict[str, Any]) -> list[ResultTable]:
    rows = []
    for name, sizes in data["sizes"].items():
        first, last = (f"{size / 2**20:.1f}" for size in (sizes[0], sizes[-1]))
        rows.append((name, first, last, f"{sizes[-1] / sizes[0] - 1:+.1%}"))
    headings = ("process", "after warm-up", "at the end", "growth")
    return [ResultTable(f"Memory of its own (MiB) over {_REQUESTS:,} requests", headings, rows)]


CASE = Case("memory", "the demo's servers over many requests", _measure, _sheets, by_default=False)
