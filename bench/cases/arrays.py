"""Vectors out and images in, beside numbers and lists of numbers."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
import redis

from bench.app import IMAGE, VECTOR
from bench.stack import Stack, broker, running
from bench.tables import Case, Effort, Goal, ResultTable
from celery_batch.processes.redis_server import RedisServer

__all__ = ["CASE"]

_ITEMS, _TRIPS = 6000, 200

_OUTPUTS = ("number", "vector", "vector_list")


def _measure(effort: Effort) -> dict[str, Any]:
    count, trips = effort.items(_ITEMS), effort.items(_TRIPS)
    with broker() as server, running("--concurrency=1", "-Q", "bench-arrays") as stack:
        for name in _OUTPUTS:  # what is done once
            _outputs(stack, name, 200)
        rounds = []
        for _ in range(effort.rounds):
            found: dict[str, Any] = {name: _outputs(stack, name, count) for name in _OUTPUTS}
            found["images"] = _images(stack, server, trips)
            rounds.append(found)
    rows = {
        name: {key: statistics.median(each[name][key] for each in rounds) for key in figures}
        for name, figures in rounds[0].items()
    }
    return {"rows": rows, "rounds": rounds}


def _outputs(stack: Stack, name: str, count: int) -> dict[str, float]:
    """Send items, and take their results: the rate, and the client's processor time for each."""
    task = stack.app.tasks[f"bench.{name}"]
    began = time.monotonic()
    results = task.delay_many(range(count))
    cpu = time.process_time()
    found = [result.get(timeout=600) for result in results]
    cpu, seconds = time.process_time() - cpu, time.monotonic() - began
    for seed in range(0, count, max(count // 50, 1)):
        wanted = np.random.default_rng(seed).random(VECTOR, "f4")
        got = np.asarray(found[seed], "f4")
        if not np.array_equal(got, wanted if name != "number" else wanted[0]):
            raise RuntimeError(f"bench.{name}: a result is not that of its item")
    return {"rate": count / seconds, "client": cpu / count * 1e6}


def _images(stack: Stack, server: RedisServer, trips: int) -> dict[str, float]:
    """Send images one by one, beside numbers, and beside a raw write and read of the bytes."""
    task = stack.app.tasks["bench.image_mean"]
    image = np.random.default_rng(1).random(IMAGE, "f4")
    data = image.tobytes()
    took: dict[str, list[float]] = {"number": [], "image": [], "raw": []}
    with redis.Redis(unix_socket_path=f"{server.directory}/redis.sock") as client:
        for _ in range(trips):
            began = time.monotonic()
            task.delay(0.5).get(timeout=60)
            took["number"].append(time.monotonic() - began)
            began = time.monotonic()
            mean = task.delay(image).get(timeout=60)
            took["image"].append(time.monotonic() - began)
            if mean != float(image.mean()):
                raise RuntimeError("bench.image_mean: a result is not that of its image")
            began = time.monotonic()
            client.set("raw", data)
            client.get("raw")
            took["raw"].append(time.monotonic() - began)
    return {name: statistics.median(seconds) for name, seconds in took.items()}


def _tables(data: dict[str, Any]) -> list[ResultTable]:
    rows, images = data["rows"], data["rows"]["images"]
    base = rows["number"]
    outputs = [
        (
            label,
            f"{rows[name]['rate']:,.0f}",
            f"{rows[name]['rate'] / base['rate']:.2f}",
            f"{rows[name]['client']:.0f}",
            f"{rows[name]['client'] / base['client']:.1f}",
        )
        for name, label in zip(_OUTPUTS, ("a number", "an array", "a list"), strict=True)
    ]
    heads = ("each result", "items/s", "of numbers", "client us", "of numbers")
    trip = (images["image"] - images["number"]) / images["raw"]
    trips = [
        ("a number, there and back", f"{images['number'] * 1000:.2f}"),
        ("an image, there and a number back", f"{images['image'] * 1000:.2f}"),
        ("SET and GET of the image's bytes", f"{images['raw'] * 1000:.2f}"),
        ("(image - number) / SET and GET", f"{trip:.1f} x"),
    ]
    shape = "x".join(map(str, IMAGE))
    return [
        ResultTable(f"Vectors of {VECTOR} float32 as results, in JSON", heads, outputs),
        ResultTable(f"A float32 image of {shape} as an argument, in JSON", ("", "ms"), trips),
    ]


def _goals(data: dict[str, Any]) -> list[Goal]:
    rows, images = data["rows"], data["rows"]["images"]
    client = rows["vector"]["client"] / rows["number"]["client"]
    trip = (images["image"] - images["number"]) / images["raw"]
    return [
        Goal(
            "arrays as results, of numbers", rows["vector"]["rate"] / rows["number"]["rate"], 0.85
        ),
        Goal("client's time for an array, of that for a number", client, 1.5, most=True),
        Goal("an image's trip, of SET and GET", trip, 2.0, most=True, unit=" x"),
    ]


CASE = Case("arrays", "vectors out and images in", _measure, _tables, _goals, by_default=False)
