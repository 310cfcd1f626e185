"""Vectors out, images and files in, and values that are larger than a message."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil
import redis

from bench.app import IMAGE, VECTOR
from bench.models.reference import BATCH, MODELS
from bench.reports.tables import Case, Effort, Goal, ResultTable
from bench.servers.image_peer import mosec_images
from bench.servers.stack import Stack, broker, running
from celery_batch.processes.redis_server import RedisServer

__all__ = ["CASE"]

_ITEMS, _TRIPS, _COSTLY = 6000, 200, 4000

_OUTPUTS = ("number", "vector", "vector_list")

#: Numbers in an array of 20 kB, bytes of a picture's file, and numbers in an array of 64 MB.
_INPUT, _FILE, _HUGE = 5000, 150_000, 8_000_000

#: Of the huge array's round trips, as one of them takes a second.
_HUGE_TRIPS = 3


def _measure(effort: Effort) -> dict[str, Any]:
    with broker() as server:
        with running("--concurrency=1", "-Q", "bench-arrays") as stack:
            for name in _OUTPUTS:  # what is done once
                _outputs(stack, name, 200)
            rounds = [_round(stack, server, effort) for _ in range(effort.rounds)]
            huge = _huge(stack)
        files = _files(server, effort.items(_TRIPS))
        peer = _peer(server, effort.items(_TRIPS)) if effort.peers else None
    rows = {
        name: {key: statistics.median(each[name][key] for each in rounds) for key in figures}
        for name, figures in rounds[0].items()
    }
    serializer = stack.app.conf.result_serializer
    return {
        "rows": rows,
        "rounds": rounds,
        "huge": huge,
        "files": files,
        "peer": peer,
        "serializer": serializer,
    }


def _round(stack: Stack, server: RedisServer, effort: Effort) -> dict[str, Any]:
    count = effort.items(_ITEMS)
    found: dict[str, Any] = {name: _outputs(stack, name, count) for name in _OUTPUTS}
    found["images"] = _images(stack, server, effort.items(_TRIPS))
    found["cost"] = _cost(stack, effort.items(_COSTLY))
    return found


def _outputs(stack: Stack, name: str, count: int) -> dict[str, float]:
    """Send items, and take their results: the rate, and the client's processor time for each."""
    task = stack.app.tasks[f"bench.{name}"]
    cpu, began = time.process_time(), time.monotonic()
    results = task.delay_many(range(count))
    found = [result.get(timeout=600) for result in results]
    cpu, seconds = time.process_time() - cpu, time.monotonic() - began
    for seed in range(0, count, max(count // 50, 1)):
        wanted = np.random.default_rng(seed).random(VECTOR, "f4")
        got = np.asarray(found[seed], "f4")
        if not np.array_equal(got, wanted if name != "number" else wanted[0]):
            raise RuntimeError(f"bench.{name}: a result is not that of its item")
    return {"rate": count / seconds, "client": cpu / count * 1e6}


def _images(stack: Stack, server: RedisServer, trips: int) -> dict[str, float]:
    """
    Send images one by one, beside numbers, and beside a raw write and read of the bytes.

    The worker computes as much for a number: the difference is the image's way alone.
    """
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


def _cost(stack: Stack, count: int) -> dict[str, float]:
    """Send arrays to the "cost" model, and take vectors: the rates, and that of the model alone."""
    task = stack.app.tasks["bench.cost_vector"]
    inputs = [np.random.default_rng(n).random(_INPUT, "f4") for n in range(BATCH)]
    began = time.monotonic()
    _check_vectors(inputs, _send_arrays(task, inputs, count))
    rate = count / (time.monotonic() - began)
    with _stopped(stack):
        results = _send_arrays(task, inputs, count)
    began = time.monotonic()
    _check_vectors(inputs, results)
    backlog = count / (time.monotonic() - began)
    began = time.monotonic()
    for _ in range(0, count, BATCH):
        MODELS["cost"]([0] * BATCH)
        np.stack([each[:VECTOR] for each in inputs])
    return {"rate": rate, "backlog": backlog, "pure": count / (time.monotonic() - began)}


def _send_arrays(task: Any, inputs: list[Any], count: int) -> list[Any]:
    return list(task.delay_many(inputs[n % BATCH] for n in range(count)))


def _check_vectors(inputs: list[Any], results: list[Any]) -> None:
    found = [result.get(timeout=600) for result in results]
    if not all(np.array_equal(inputs[n % BATCH][:VECTOR], each) for n, each in enumerate(found)):
        raise RuntimeError("bench.cost_vector: a result is not that of its item")


@contextmanager
def _stopped(stack: Stack) -> Iterator[None]:
    """Stop a worker's processes, so that what is sent meanwhile waits at the broker."""
    top = psutil.Process(stack.worker.pid)
    processes = [top, *top.children(recursive=True)]
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


def _huge(stack: Stack) -> dict[str, float]:
    """Send arrays of 64 MB there and back: the time, and by how much the main process grows."""
    task = stack.app.tasks["bench.same"]
    array = np.random.default_rng(1).random(_HUGE)
    main = psutil.Process(stack.worker.pid)
    main = next(iter(main.children()), main) if main.name() != "celery" else main
    task.delay(1).get(timeout=60)
    before = main.memory_info().rss
    took = []
    for _ in range(_HUGE_TRIPS):
        began = time.monotonic()
        result = task.delay(array)
        found = result.get(timeout=600)
        took.append(time.monotonic() - began)
        if not np.array_equal(array, found):
            raise RuntimeError("bench.same: an array came back changed")
        result.forget()
    return {"seconds": min(took), "growth": (main.memory_info().rss - before) / (1 << 20)}


def _files(server: RedisServer, trips: int) -> dict[str, float]:
    """Send files with a store named: how many bytes Redis receives for each byte."""
    data = np.random.default_rng(1).bytes(_FILE)
    options = ("--concurrency=1", "-Q", "bench-arrays")
    with (
        running(*options, BENCH_PAYLOAD_STORE=server.url) as stack,
        redis.Redis(unix_socket_path=f"{server.directory}/redis.sock") as client,
    ):
        task = stack.app.tasks["bench.size"]
        stack.app.conf.batch_payload_store = server.url
        try:
            received = {
                name: _received(client, task, value, trips)
                for name, value in (("warm", 1), ("number", 1), ("file", data))
            }
        finally:
            stack.app.conf.batch_payload_store = None
    return {"share": (received["file"] - received["number"]) / len(data)}


def _peer(server: RedisServer, trips: int) -> float:
    """Return the seconds of an image's way to mosec and of a number's back."""
    image = np.random.default_rng(1).random(IMAGE, "f4")
    took = []
    with mosec_images(server, image) as mean:
        for _ in range(trips):
            began = time.monotonic()
            found = mean(image)
            took.append(time.monotonic() - began)
            if found != float(image.mean()):
                raise RuntimeError("mosec: a result is not that of its image")
    return statistics.median(took)


def _received(client: redis.Redis, task: Any, value: Any, trips: int) -> float:
    """Return the bytes that Redis receives for a call."""
    counted = "total_net_input_bytes"
    before = client.info("stats")[counted]
    for _ in range(trips):
        if task.delay(value).get(timeout=60) != (len(value) if isinstance(value, bytes) else 1):
            raise RuntimeError("bench.size: a result is not that of its item")
    return float(client.info("stats")[counted] - before) / trips


def _tables(data: dict[str, Any]) -> list[ResultTable]:
    rows, images = data["rows"], data["rows"]["images"]
    base, serializer = rows["number"], data["serializer"]
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
        ("64 MB there and back", f"{data['huge']['seconds'] * 1000:.0f}"),
    ]
    if data["peer"] is not None:
        label = "mosec, msgpack and Redis mixins: an image there and a number back"
        trips.append((label, f"{data['peer'] * 1000:.2f}"))
    cost = rows["cost"]
    others = [
        ('"cost", 20 kB in and 384 floats out, items/s', f"{cost['rate']:,.0f}"),
        ("such a backlog that was sent before, items/s", f"{cost['backlog']:,.0f}"),
        ("the model alone, items/s", f"{cost['pure']:,.0f}"),
        ("bytes that Redis receives for a byte of a file", f"{data['files']['share']:.3f}"),
        ("growth of the main process with 64 MB, MiB", f"{data['huge']['growth']:.1f}"),
    ]
    shape = "x".join(map(str, IMAGE))
    return [
        ResultTable(f"Vectors of {VECTOR} float32 as results, in {serializer}", heads, outputs),
        ResultTable(f"A float32 image of {shape} as an argument", ("", "ms"), trips),
        ResultTable("Files, and arrays beside a model that takes time", ("", ""), others),
    ]


def _goals(data: dict[str, Any]) -> list[Goal]:
    rows, images, cost = data["rows"], data["rows"]["images"], data["rows"]["cost"]
    client = rows["vector"]["client"] / rows["number"]["client"]
    trip = (images["image"] - images["number"]) / images["raw"]
    return [
        Goal(
            "arrays as results, of numbers", rows["vector"]["rate"] / rows["number"]["rate"], 0.85
        ),
        Goal("client's time for an array, of that for a number", client, 1.5, most=True),
        Goal("an image's trip, of SET and GET", trip, 2.0, most=True, unit=" x"),
        Goal("a file of 150 kB, bytes on the wire", data["files"]["share"], 1.02, most=True),
        Goal('"cost" with arrays, of the model', cost["rate"] / cost["pure"], 0.85),
        Goal("such a backlog, of the model", cost["backlog"] / cost["pure"], 0.85),
        Goal(
            "64 MB: growth of the main process", data["huge"]["growth"], 8, most=True, unit=" MiB"
        ),
    ]


CASE = Case(
    "arrays", "vectors out, images and files in", _measure, _tables, _goals, by_default=False
)
