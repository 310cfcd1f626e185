"""
service-streamer's interface, on our engine: change the import line, and your program runs.

Nothing is loaded before it is used: a program with streamers in its own process
imports no Celery.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_batch.streamer.model_adapters import ManagedModel as ManagedModel
    from celery_batch.streamer.process_streamer import Streamer as Streamer
    from celery_batch.streamer.process_supervisor import GpuWorkerManager as GpuWorkerManager
    from celery_batch.streamer.redis_streamer import RedisStreamer as RedisStreamer
    from celery_batch.streamer.redis_worker import RedisWorker as RedisWorker
    from celery_batch.streamer.redis_worker import StreamWorker as StreamWorker
    from celery_batch.streamer.redis_worker import (
        run_redis_workers_forever as run_redis_workers_forever,
    )
    from celery_batch.streamer.threaded import ThreadedStreamer as ThreadedStreamer

_HOME = {
    "GpuWorkerManager": "celery_batch.streamer.process_supervisor",
    "ManagedModel": "celery_batch.streamer.model_adapters",
    "RedisStreamer": "celery_batch.streamer.redis_streamer",
    "RedisWorker": "celery_batch.streamer.redis_worker",
    "StreamWorker": "celery_batch.streamer.redis_worker",
    "Streamer": "celery_batch.streamer.process_streamer",
    "ThreadedStreamer": "celery_batch.streamer.threaded",
    "run_redis_workers_forever": "celery_batch.streamer.redis_worker",
}

__all__ = [*_HOME]  # noqa: PLE0604 (every key is a string)


def __getattr__(name: str) -> object:
    try:
        home = _HOME[name]
    except KeyError:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg) from None
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
