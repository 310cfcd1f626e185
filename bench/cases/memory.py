"""Memory of the worker and the web process over many requests: it must not grow."""

from __future__ import annotations

import itertools
from typing import Any

import psutil

from bench.sheet import Case, Effort, Sheet
from deploy.local.load import Question, run_load
from deploy.local.servers import Servers

__all__ = ["CASE"]

_REQUESTS = 50_000

#: Requests before the first look: caches fill, all threads of the web server have
#: worked, allocators settle.
_WARM_UP = 10_000

_STEP = 5_000
_CLIENTS = 64
_QUESTION = Question("twinkle twinkle [MASK] star.", "little")


def _measure(effort: Effort) -> dict[str, Any]:
    with Servers() as servers:
        servers.start()
        url = f"{servers.web_url}/stream"
        _send(url, effort.items(_WARM_UP), servers)
        looks = [_look()]
        for _ in range(_STEP, _REQUESTS + 1, _STEP):
            _send(url, effort.items(_STEP), servers)
            looks.append(_look())
    return {"sizes": {name: [look[name] for look in looks] for name in looks[0]}}


def _send(url: str, requests: int, servers: Servers) -> None:
    load = run_load(
        url, itertools.repeat(_QUESTION, requests), clients=_CLIENTS, check=servers.check
    )
    if load.errors:
        raise AssertionError(load.errors[:3])


def _look() -> dict[str, int]:
    """Return the bytes that each serving process has to itself."""
    sizes = {}
    for process in psutil.Process().children(recursive=True):
        if name := _part(process):
            sizes[name] = process.memory_full_info().uss
    return sizes


def _part(process: psutil.Process) -> str | None:
    """Say which part a process is, by its own command and its parent's."""
    parent = process.parent()
    own, parents = (" ".join(each.cmdline()) if each else "" for each in (process, parent))
    for server, main, below in (
        ("webapp.flask_app", None, "web process"),
        ("celery -A workers worker", "worker", "pool process"),
    ):
        if server in own and "keeper.py" not in own:
            is_main = "keeper.py" in parents
            return main if is_main else below
    return None


def _sheets(data: dict[str, Any]) -> list[Sheet]:
    rows = []
    for name, sizes in data["sizes"].items():
        first, last = (f"{size / 2**20:.1f}" for size in (sizes[0], sizes[-1]))
        rows.append((name, first, last, f"{sizes[-1] / sizes[0] - 1:+.1%}"))
    headings = ("process", "after warm-up", "at the end", "growth")
    return [Sheet(f"Memory of its own (MiB) over {_REQUESTS:,} requests", headings, rows)]


CASE = Case("memory", "the demo's servers over many requests", _measure, _sheets, by_default=False)
