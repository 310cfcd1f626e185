"""Texts of which half are repeated: computed all, each only once at a time, or once at all."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import redis

from bench.app import REUSE
from bench.models.encoder import Embedder, texts
from bench.reports.tables import Case, Effort, Goal, ResultTable
from bench.servers.stack import Stack, broker, running
from celery_batch.processes.redis_server import RedisServer

__all__ = ["CASE"]

_TEXTS = 3072

#: Callers of which each waits for its answer before it sends the next text.
_CALLERS = 64

#: Outputs of batches and of single texts differ by rounding.
_TOLERANCE = 1e-3

_COUNTS = ("cache_hits", "cache_misses", "duplicates")


def _trace(count: int) -> list[list[int]]:
    """Return texts in the order in which they are sent; every other one was there before."""
    chance = random.Random(1)
    fresh = iter(texts(count))
    sent = [next(fresh)]
    while len(sent) < count:
        sent.append(next(fresh) if chance.random() < 0.5 else chance.choice(sent))  # noqa: PLR2004 (half)
    return sent


def _measure(effort: Effort) -> dict[str, Any]:
    items = _trace(effort.items(_TEXTS))
    model = Embedder()
    model.load("cpu")
    expected = [model.predict([item])[0] for item in items[:64]]
    with broker(), RedisServer() as server:
        os.environ["BENCH_CACHE_URL"] = server.url
        try:
            with running("--concurrency=1", "-Q", "bench-reuse") as stack:
                rounds = [
                    {
                        f"{load} {name}": _one(stack, server, name, load, items, expected)
                        for load in ("backlog", "callers")
                        for name in REUSE
                    }
                    for _ in range(effort.rounds)
                ]
        finally:
            del os.environ["BENCH_CACHE_URL"]
    rows = {
        name: {key: statistics.median(each[name][key] for each in rounds) for key in found}
        for name, found in rounds[0].items()
    }
    repeated = 1 - len(set(map(tuple, items))) / len(items)
    return {"rows": rows, "rounds": rounds, "repeated": repeated}


def _one(
    stack: Stack,
    server: RedisServer,
    name: str,
    load: str,
    items: list[list[int]],
    expected: Sequence[list[float]],
) -> dict[str, float]:
    """Send the texts, to a cache that is empty."""
    task = f"bench.{name}"
    with redis.Redis(unix_socket_path=f"{server.directory}/redis.sock") as client:
        client.flushall()
        empty = client.info("memory")["used_memory"]
        before = _counts(stack, task)
        began = time.monotonic()
        outputs = _send(stack.app.tasks[task], load, items)
        seconds = time.monotonic() - began
        answers = client.dbsize() - 1
        used = client.info("memory")["used_memory"] - empty
    for found, wanted in zip(outputs, expected, strict=False):
        if max(abs(a - b) for a, b in zip(found, wanted, strict=True)) > _TOLERANCE:
            raise RuntimeError(f"{task}: an output is not that of the text alone")
    after = _counts(stack, task)
    counted = {key: after[key] - before[key] for key in after}
    return {
        "rate": len(items) / seconds,
        "hits": counted["cache_hits"] / len(items),
        "duplicates": counted["duplicates"] / len(items),
        "answer": used / answers if answers > 0 else 0.0,
        "process": _memory(stack),
    }


def _send(task: Any, load: str, items: list[list[int]]) -> list[Any]:
    """Return the outputs, in order."""
    if load == "backlog":
        return [result.get(timeout=600) for result in task.delay_many(items)]
    with ThreadPoolExecutor(_CALLERS) as callers:
        return list(callers.map(lambda item: task.delay(item).get(timeout=600), items))


def _counts(stack: Stack, task: str) -> dict[str, int]:
    status = stack.status().get(task, {})
    return {key: status.get(key, 0) for key in _COUNTS}


def _memory(stack: Stack) -> float:
    """Return the memory of the worker's main process, in bytes."""
    (server,) = psutil.Process(stack.worker.pid).children()
    return float(server.memory_info().rss)


def _tables(data: dict[str, Any]) -> list[ResultTable]:
    rows = [
        (
            name.replace("_", " "),
            f"{row['rate']:.0f}",
            f"{row['hits']:.0%}",
            f"{row['duplicates']:.0%}",
            f"{row['answer']:.0f}" if row["answer"] else "",
            f"{row['process'] / 2**20:.0f}",
        )
        for name, row in data["rows"].items()
    ]
    note = (
        f"{data['repeated']:.0%} of the texts were there before; an answer has 128 numbers;"
        f" batches of 32 rows; a backlog, or {_CALLERS} callers of which each waits for its answer."
    )
    headings = ("load and task", "texts/s", "hits", "duplicates", "bytes/answer", "worker MiB")
    return [ResultTable("Texts of which half are repeated", headings, rows, (note,))]


def _goals(data: dict[str, Any]) -> list[Goal]:
    rows = data["rows"]

    def gain(load: str, name: str) -> float:
        return float(rows[f"{load} {name}"]["rate"] / rows[f"{load} computes_all"]["rate"])

    saved = rows["callers caches"]["hits"] + rows["callers caches"]["duplicates"]
    return [
        Goal("a backlog, cached, of computing all", gain("backlog", "caches"), 1.6, unit=" x"),
        Goal("callers, cached, of computing all", gain("callers", "caches"), 1.6, unit=" x"),
        Goal("repeated texts of callers that are not computed", saved / data["repeated"], 0.9),
        Goal("dedupe alone, of computing all", gain("backlog", "dedupes"), 1.0, unit=" x"),
    ]


CASE = Case(
    "cache", "texts of which half are repeated", _measure, _tables, _goals, by_default=False
)
