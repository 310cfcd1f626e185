"""
Batched model serving on Celery.

Import from here. Each module but `errors` is imported when one of its names is first used, and
none imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from celery_batch import errors

if TYPE_CHECKING:
    from celery_batch.batching.policy import BatchPolicy as BatchPolicy
    from celery_batch.client.backpressure import BrokerUnreachable as BrokerUnreachable
    from celery_batch.client.publish.send_many import PartlySent as PartlySent
    from celery_batch.client.results.futures import as_completed as as_completed
    from celery_batch.client.results.listener import close_listener as close_listener
    from celery_batch.client.results.result import BatchResult as BatchResult
    from celery_batch.client.revoke import revoke_soon as revoke_soon
    from celery_batch.errors import *  # noqa: F403 (the names in its `__all__`)
    from celery_batch.protocol import BatchInfo as BatchInfo
    from celery_batch.protocol import BatchPlan as BatchPlan
    from celery_batch.runtime.model import Model as Model
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
    from celery_batch.task import BatchTask as BatchTask
    from celery_batch.web.arrays import NotAcceptable as NotAcceptable
    from celery_batch.web.arrays import as_lists as as_lists
    from celery_batch.web.arrays import encode_outputs as encode_outputs
    from celery_batch.web.arrays import read_npy as read_npy
    from celery_batch.web.disconnect import ClientDisconnected as ClientDisconnected
    from celery_batch.web.disconnect import until_disconnect as until_disconnect
    from celery_batch.web.errors import BackendUnreachable as BackendUnreachable
    from celery_batch.web.errors import HttpError as HttpError
    from celery_batch.web.errors import TaskFailed as TaskFailed
    from celery_batch.web.errors import http_error as http_error
    from celery_batch.web.predict import apredict as apredict
    from celery_batch.web.predict import predict as predict
    from celery_batch.web.prepare import prepare as prepare
    from celery_batch.web.readiness import Readiness as Readiness
    from celery_batch.web.readiness import areadiness as areadiness
    from celery_batch.web.readiness import readiness as readiness

__version__ = "0.9.0"

#: The public names of each module.
_NAMES = {
    "celery_batch.batching.policy": ("BatchPolicy",),
    "celery_batch.client.backpressure": ("BrokerUnreachable",),
    "celery_batch.client.publish.send_many": ("PartlySent",),
    "celery_batch.client.results.futures": ("as_completed",),
    "celery_batch.client.results.listener": ("close_listener",),
    "celery_batch.client.results.result": ("BatchResult",),
    "celery_batch.client.revoke": ("revoke_soon",),
    "celery_batch.errors": tuple(errors.__all__),
    "celery_batch.protocol": ("BatchInfo", "BatchPlan"),
    "celery_batch.runtime.model": ("Model",),
    "celery_batch.streamer": (
        "GpuWorkerManager",
        "ManagedModel",
        "RedisStreamer",
        "RedisWorker",
        "StreamWorker",
        "Streamer",
        "ThreadedStreamer",
        "run_redis_workers_forever",
    ),
    "celery_batch.task": ("BatchTask",),
    "celery_batch.web.arrays": ("NotAcceptable", "as_lists", "encode_outputs", "read_npy"),
    "celery_batch.web.disconnect": ("ClientDisconnected", "until_disconnect"),
    "celery_batch.web.errors": ("BackendUnreachable", "HttpError", "TaskFailed", "http_error"),
    "celery_batch.web.predict": ("apredict", "predict"),
    "celery_batch.web.prepare": ("prepare",),
    "celery_batch.web.readiness": ("Readiness", "areadiness", "readiness"),
}

_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [*_HOME, "__version__"]  # noqa: PLE0604 (every key is a string)


def __getattr__(name: str) -> object:
    try:
        home = _HOME[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
