"""Memory of the worker and the web process over many requests: it must not grow."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from deploy.local.load import Question, run_load
from deploy.local.servers import Servers

__all__ = ["Memory", "measure"]

#: Requests before the first look: caches fill, all threads of the web server have
#: worked, allocators settle.
_WARM_UP = 10_000

_STEP = 5_000
_CLIENTS = 64
_QUESTION = Question("twinkle twinkle [MASK] star.", "little")


@dataclass(frozen=True, slots=True)
class Memory:
    """
    One process over the whole run.

    Args:
        process: What it is.
        sizes: Bytes that are its own, after the warm-up and after each step.
    """

    process: str
    sizes: list[int]

    @property
    def growth(self) -> float:
        """How much more it holds at the end than after the warm-up, as a share."""
        return self.sizes[-1] / self.sizes[0] - 1


def measure(requests: int, say: Callable[[str], object]) -> list[Memory]:
    """
    Send requests over HTTP to the demo's servers and watch their memory.

    Args:
        requests: How many after the warm-up, in steps of 5,000.
        say: Told about each step.
    """
    with Servers() as servers:
        servers.start()
        url = f"{servers.web_url}/stream"
        _send(url, _WARM_UP, servers)
        looks = [_look()]
        for done in range(_STEP, requests + 1, _STEP):
            _send(url, _STEP, servers)
            looks.append(_look())
            say(f"{done} requests: " + ", ".join(_show(*part) for part in looks[-1].items()))
    return [Memory(name, [look[name] for look in looks]) for name in looks[0]]


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


def _show(name: str, size: int) -> str:
    return f"{name} {size / 2**20:.1f} MiB"
