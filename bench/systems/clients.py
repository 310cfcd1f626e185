"""Clients in a closed loop: each asks for one item and waits, then asks for the next."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from statistics import median
from typing import Any

from bench.models.reference import expected
from bench.systems.system import TIMEOUT

__all__ = ["closed_loop"]


def closed_loop(
    system: Any, clients: int, each: int, how: str, *, naive: bool = False
) -> dict[str, Any]:
    """Let clients ask, and say how long they waited and what batches their items formed."""
    if naive:
        system.task = system.app.tasks["bench.naive"]
    before = system.status()
    started = time.perf_counter()
    ask = _in_threads if how == "threads" else _in_coroutines
    times = sorted(ask(system.task, clients, each))
    seconds = time.perf_counter() - started
    after = system.status()
    batches = after["batches"] - before["batches"]
    return {
        "rate": len(times) / seconds,
        "p50": median(times),
        "p99": times[int(len(times) * 0.99)],
        "mean_batch": (after["requests"] - before["requests"]) / batches,
        "reasons": dict(Counter(after["reasons"]) - Counter(before["reasons"])),
    }


def _in_threads(task: Any, clients: int, each: int) -> list[float]:
    times: list[float] = []
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            for item in range(each):
                started = time.perf_counter()
                answer = task.delay(item).get(timeout=TIMEOUT)
                times.append(time.perf_counter() - started)
                _check(answer, item)
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return times


def _in_coroutines(task: Any, clients: int, each: int) -> list[float]:
    times: list[float] = []

    async def ask() -> None:
        for item in range(each):
            started = time.perf_counter()
            answer = await (await task.adelay(item))
            times.append(time.perf_counter() - started)
            _check(answer, item)

    async def all_clients() -> None:
        await asyncio.wait_for(asyncio.gather(*(ask() for _ in range(clients))), TIMEOUT)

    asyncio.run(all_clients())
    return times


def _check(answer: int, item: int) -> None:
    right = expected(range(item, item + 1))
    if [answer] != right:
        raise AssertionError(f"{answer} to {item}")
