"""The Celery app under test; the worker is the stock one."""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path
from typing import Any

from celery import Celery

from bench.models.encoder import CompiledEncoder, Embedder, Encoder, ShapedEncoder
from bench.models.reference import BATCH, MODELS, Reference
from celery_batch import BatchTask

#: The sizes in rows, and the cost in padded tokens, of batches of texts.
ROWS, COST = (8, 16, 32, 64), 2048

#: Two models that share a process.
LARGE, SMALL = Reference(0.2, 0.0), Reference(0.004, 0.0005)

#: How tasks of repeated texts may use answers again.
REUSE: dict[str, dict[str, Any]] = {
    "computes_all": {},
    "dedupes": {"dedupe": True},
    "caches": {"cache_ttl": 600, "version": 1},
    "dedupes_and_caches": {"dedupe": True, "cache_ttl": 600, "version": 1},
}

#: Seconds of a call and of each row, the sizes that batches may have, and the latency targets.
PACED_CALL, PACED_ROW, PACED_SIZES, TARGETS = 0.004, 0.002, (4, 8, 16, 32, 64), (0.05, 0.1, 0.2)


class _App(Celery):  # type: ignore[misc]  # it has no types
    """An app whose tasks are its own, whatever other apps its process has."""

    def task(self, *args: Any, **options: Any) -> Any:
        """Register a task with this app alone."""
        return super().task(*args, **{"shared": False, **options})


app = _App("bench")
app.conf.update(
    result_expires=3600,
    broker_connection_retry_on_startup=True,
    batch_overlap=bool(os.environ.get("BENCH_OVERLAP", "1")),
    batch_cache_url=os.environ.get("BENCH_CACHE_URL"),
    result_serializer=os.environ.get("BENCH_RESULT_SERIALIZER", "json"),
    result_accept_content=["json", "batch-msgpack"],
    batch_payload_store=os.environ.get("BENCH_PAYLOAD_STORE"),
)

_BATCHED: dict[str, Any] = {"base": BatchTask, "max_batch_size": BATCH, "max_wait": 0.1}


@app.task(name="bench.noop", **_BATCHED)
def noop(item: list[int]) -> list[int]:
    """Cost nothing: what is measured is the way there and back."""
    return MODELS["noop"](item)


@app.task(name="bench.cost", **_BATCHED)
def cost(item: list[int]) -> list[int]:
    """Run the model of 10 ms a call and 0.1 ms an item."""
    return MODELS["cost"](item)


@app.task(name="bench.bert", **_BATCHED)
def bert(item: list[int]) -> list[int]:
    """Run the model of 20 ms a call and 2.05 ms an item."""
    return MODELS["bert"](item)


@app.task(name="bench.slow", **_BATCHED)
def slow(item: list[int]) -> list[int]:
    """Run the model of 200 ms a call and 4 ms an item."""
    return MODELS["slow"](item)


@app.task(name="bench.web", linger=0.01, **_BATCHED)
def web(item: list[int]) -> list[int]:
    """Run the "cost" model behind a web server, as patient as the peers are set to be."""
    return MODELS["cost"](item)


@app.task(name="bench.naive", base=BatchTask, max_batch_size=1)
def naive(item: list[int]) -> list[int]:
    """Run the "cost" model one item at a time."""
    return MODELS["cost"](item)


@app.task(name="bench.plain")
def plain(item: int) -> int:
    """Be an ordinary task, sent by Celery's own client."""
    return MODELS["noop"]([item])[0]


@app.task(name="bench.timed", queue="timed", **_BATCHED)
def timed(item: list[int]) -> list[int]:
    """Run the "cost" model, and note when it began and ended."""
    began = time.monotonic()
    for _ in range(int(os.environ["BENCH_CALLS"])):
        outputs = MODELS["cost"](item)
    ended = time.monotonic()
    os.write(_times(), f"{began} {ended} {len(item)}\n".encode())
    return outputs


@app.task(name="bench.large", queue="bench-large", base=BatchTask, max_batch_size=8)
def large(item: list[int]) -> list[int]:
    """Run a model of 200 ms a call."""
    return LARGE(item)


@app.task(name="bench.small", queue="bench-small", base=BatchTask, max_batch_size=32)
def small(item: list[int]) -> list[int]:
    """Run a model of 4 ms a call and 0.5 ms an item."""
    return SMALL(item)


for _size in ROWS:
    Encoder.as_task(
        app, name=f"bench.rows{_size}", max_batch_size=_size, queue=f"bench-rows{_size}"
    )
Encoder.as_task(
    app,
    name="bench.cost_limited",
    cost="item",
    max_batch_cost=COST,
    padded=True,
    queue="bench-cost_limited",
)
for _name, _reuse in REUSE.items():
    Embedder.as_task(app, name=f"bench.{_name}", max_batch_size=32, queue="bench-reuse", **_reuse)


#: Numbers of a vector, as of a small sentence embedding, and an image's shape.
VECTOR, IMAGE = 384, (3, 224, 224)


def _vectors(item: list[int]) -> Any:
    """Return an array for the batch: random numbers, the same for equal items."""
    import numpy as np  # noqa: PLC0415 (the worker's main process needs none)

    return np.concatenate([np.random.default_rng(seed).random((1, VECTOR), "f4") for seed in item])


_ARRAYS: dict[str, Any] = {"base": BatchTask, "max_batch_size": 64, "queue": "bench-arrays"}


@app.task(name="bench.number", **_ARRAYS)
def number(item: list[int]) -> list[float]:
    """Return a number of each vector, so that both cost the same to compute."""
    return _vectors(item)[:, 0].tolist()  # type: ignore[no-any-return]


@app.task(name="bench.vector", **_ARRAYS)
def vector(item: list[int]) -> Any:
    """Return vectors, each as an array."""
    return _vectors(item)


@app.task(name="bench.vector_list", outputs="lists", **_ARRAYS)
def vector_list(item: list[int]) -> Any:
    """Return vectors, each as a list of numbers."""
    return _vectors(item)


@app.task(name="bench.image_mean", **_ARRAYS)
def image_mean(image: list[Any]) -> list[float]:
    """Return the mean of each image; for a number that of an image which is here already."""
    images = [_black() if isinstance(each, float) else each for each in image]
    return [float(each.mean()) for each in images]


@cache
def _black() -> Any:
    import numpy as np  # noqa: PLC0415 (as above)

    return np.zeros(IMAGE, "f4")


@app.task(name="bench.cost_vector", **_ARRAYS)
def cost_vector(item: list[Any]) -> Any:
    """Run the "cost" model on arrays, and return a vector for each."""
    import numpy as np  # noqa: PLC0415 (as above)

    MODELS["cost"]([0] * len(item))
    return np.stack([each[:VECTOR] for each in item])


@app.task(name="bench.size", **_ARRAYS)
def size(item: list[Any]) -> list[int]:
    """Return how long each file is, or a number as it is."""
    return [len(each) if isinstance(each, bytes) else each for each in item]


@app.task(name="bench.same", **_ARRAYS)
def same(item: list[Any]) -> list[Any]:
    """Return each item as it came."""
    return item


#: A network that torch compiles for each shape that it finds, or for a few before.
SHAPES = {"any_shape": Encoder, "compiled": CompiledEncoder, "fixed_shapes": ShapedEncoder}
for _name, _model in SHAPES.items():
    _model.as_task(
        app,
        name=f"bench.{_name}",
        max_batch_size=ShapedEncoder.batch_sizes[-1],
        cost=len,
        max_batch_cost=COST,
        padded=True,
        queue=f"bench-{_name}",
    )


def double(value: list[int], key: Any) -> list[tuple[int, Any]]:
    """Double each number and say with which key, in the time of a small model."""
    keyed = Reference(0.002, 0.0001)(value)
    return [(each, key if isinstance(key, str) else None) for each in keyed]


_COSTED: dict[str, Any] = {
    "cost": lambda value, key: 10 + len(key),  # noqa: ARG005 (a cost gets all arguments)
    "max_batch_cost": 1000,
    "padded": True,
}
KEYED: dict[str, dict[str, Any]] = {
    "unkeyed": {},
    "costed": _COSTED,
    "keyed": {"batch_by": "key"},
    "keyed_costed": {"batch_by": "key", **_COSTED},
}
for _name, _by in KEYED.items():
    app.task(base=BatchTask, name=f"bench.{_name}", max_batch_size=32, queue="bench-keys", **_by)(
        double
    )


def _paced(item: list[int]) -> list[int]:
    """Take a time that can be changed meanwhile."""
    times = float(Path(os.environ["BENCH_SLOWER"]).read_text())
    time.sleep((PACED_CALL + PACED_ROW * len(item)) * times)
    return [2 * each for each in item]


for _target in TARGETS:
    app.task(
        base=BatchTask,
        name=f"bench.target{_target * 1000:.0f}",
        max_batch_size=max(PACED_SIZES),
        max_wait=0.01,
        target_latency=_target,
        queue=f"bench-target{_target * 1000:.0f}",
    )(_paced)
for _size in PACED_SIZES:
    for _name, _wait in ((f"bench.paced{_size}", 0.0), (f"bench.paced{_size}w", 0.01)):
        app.task(
            base=BatchTask, name=_name, max_batch_size=_size, max_wait=_wait, queue="bench-paced"
        )(_paced)


@cache
def _times() -> int:
    return os.open(os.environ["BENCH_TIMES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
