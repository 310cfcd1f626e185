"""infinity_emb's own batches for our encoder, in this process, where it is installed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

from bench.encoder import Encoder

__all__ = ["has_infinity", "infinity"]

_ROWS = 32


@cache
def has_infinity() -> bool:
    """Return whether it is installed."""
    try:
        import_module("infinity_emb.inference.queue")
    except ImportError:
        return False
    return True


@contextmanager
def infinity(model: Encoder) -> Iterator[_Task]:
    """Let it batch what is sent to the task that this yields."""
    model.load("cpu")
    handler = import_module("infinity_emb.inference.batch_handler").BatchHandler
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        task = _Task(handler([_Replica(model)], max_batch_size=_ROWS), loop)
        task.run(task.handler.spawn()).result()
        yield task
        task.run(task.handler.shutdown()).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class _Replica:
    """Our encoder with the interface that infinity's batches need."""

    capabilities = frozenset({"embed"})

    def __init__(self, model: Encoder) -> None:
        self.encode_core = model.predict

    def encode_pre(self, tokens: list[list[int]]) -> list[list[int]]:
        return tokens

    def encode_post(self, outputs: list[Any]) -> list[Any]:
        return outputs


class _Task:
    """The interface of a task."""

    name = "infinity_emb"

    def __init__(self, handler: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.handler = handler
        self.loop = loop

    def run(self, coroutine: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def delay(self, item: list[int]) -> _Result:
        return self.delay_many([item])[0]

    def delay_many(self, items: Sequence[list[int]]) -> list[_Result]:
        return [_Result(self.run(self.handler.embed([item]))) for item in items]


class _Result:
    """The interface of a result."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def future(self) -> Future[Any]:
        return self._future

    def get(self, timeout: float) -> Any:
        (output,), _ = self._future.result(timeout)
        return output
