"""
Batched model serving on Celery.

Import from here. Each module is imported when one of its names is first used, and none
imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_batch.batching.policy import BatchPolicy as BatchPolicy
    from celery_batch.client.backpressure import BrokerUnreachable as BrokerUnreachable
    from celery_batch.client.publish.send_many import PartlySent as PartlySent
    from celery_batch.client.results.futures import as_completed as as_completed
    from celery_batch.client.results.listener import close_listener as close_listener
    from celery_batch.client.results.result import BatchResult as BatchResult
    from celery_batch.client.revoke import revoke_soon as revoke_soon
    from celery_batch.errors import BackfillComplete as BackfillComplete
    from celery_batch.errors import BackfillError as BackfillError
    from celery_batch.errors import BackfillStopped as BackfillStopped
    from celery_batch.errors import BatchError as BatchError
    from celery_batch.errors import ChunkFailed as ChunkFailed
    from celery_batch.errors import ConfigurationError as ConfigurationError
    from celery_batch.errors import DeadlineExceeded as DeadlineExceeded
    from celery_batch.errors import InvalidChunk as InvalidChunk
    from celery_batch.errors import InvalidCost as InvalidCost
    from celery_batch.errors import InvalidKey as InvalidKey
    from celery_batch.errors import InvalidPayload as InvalidPayload
    from celery_batch.errors import InvalidRow as InvalidRow
    from celery_batch.errors import ItemTooLarge as ItemTooLarge
    from celery_batch.errors import LoadFailed as LoadFailed
    from celery_batch.errors import MessageRefused as MessageRefused
    from celery_batch.errors import MessageTooLarge as MessageTooLarge
    from celery_batch.errors import ModelError as ModelError
    from celery_batch.errors import OutOfMemory as OutOfMemory
    from celery_batch.errors import PoisonItem as PoisonItem
    from celery_batch.errors import QueueFull as QueueFull
    from celery_batch.errors import StreamerClosed as StreamerClosed
    from celery_batch.errors import WorkerLost as WorkerLost
    from celery_batch.errors import WrongResultCount as WrongResultCount
    from celery_batch.protocol import BatchInfo as BatchInfo
    from celery_batch.protocol import BatchPlan as BatchPlan
    from celery_batch.runtime.model import Model as Model
    from celery_batch.streamer.manager import GpuWorkerManager as GpuWorkerManager
    from celery_batch.streamer.model_adapters import ManagedModel as ManagedModel
    from celery_batch.streamer.process_streamer import Streamer as Streamer
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

_HOME = {
    "BackendUnreachable": "celery_batch.web.errors",
    "BackfillComplete": "celery_batch.errors",
    "BackfillError": "celery_batch.errors",
    "BackfillStopped": "celery_batch.errors",
    "BatchError": "celery_batch.errors",
    "BatchInfo": "celery_batch.protocol",
    "BatchPlan": "celery_batch.protocol",
    "BatchPolicy": "celery_batch.batching.policy",
    "BatchResult": "celery_batch.client.results.result",
    "BatchTask": "celery_batch.task",
    "BrokerUnreachable": "celery_batch.client.backpressure",
    "ChunkFailed": "celery_batch.errors",
    "ClientDisconnected": "celery_batch.web.disconnect",
    "ConfigurationError": "celery_batch.errors",
    "DeadlineExceeded": "celery_batch.errors",
    "GpuWorkerManager": "celery_batch.streamer",
    "HttpError": "celery_batch.web.errors",
    "InvalidChunk": "celery_batch.errors",
    "InvalidCost": "celery_batch.errors",
    "InvalidKey": "celery_batch.errors",
    "InvalidPayload": "celery_batch.errors",
    "InvalidRow": "celery_batch.errors",
    "ItemTooLarge": "celery_batch.errors",
    "LoadFailed": "celery_batch.errors",
    "ManagedModel": "celery_batch.streamer",
    "MessageRefused": "celery_batch.errors",
    "MessageTooLarge": "celery_batch.errors",
    "Model": "celery_batch.runtime.model",
    "ModelError": "celery_batch.errors",
    "NotAcceptable": "celery_batch.web.arrays",
    "OutOfMemory": "celery_batch.errors",
    "PartlySent": "celery_batch.client.publish.send_many",
    "PoisonItem": "celery_batch.errors",
    "QueueFull": "celery_batch.errors",
    "Readiness": "celery_batch.web.readiness",
    "RedisStreamer": "celery_batch.streamer",
    "RedisWorker": "celery_batch.streamer",
    "StreamWorker": "celery_batch.streamer",
    "Streamer": "celery_batch.streamer",
    "StreamerClosed": "celery_batch.errors",
    "ThreadedStreamer": "celery_batch.streamer",
    "TaskFailed": "celery_batch.web.errors",
    "WorkerLost": "celery_batch.errors",
    "WrongResultCount": "celery_batch.errors",
    "apredict": "celery_batch.web.predict",
    "areadiness": "celery_batch.web.readiness",
    "as_completed": "celery_batch.client.results.futures",
    "as_lists": "celery_batch.web.arrays",
    "close_listener": "celery_batch.client.results.listener",
    "encode_outputs": "celery_batch.web.arrays",
    "http_error": "celery_batch.web.errors",
    "predict": "celery_batch.web.predict",
    "prepare": "celery_batch.web.prepare",
    "read_npy": "celery_batch.web.arrays",
    "readiness": "celery_batch.web.readiness",
    "revoke_soon": "celery_batch.client.revoke",
    "run_redis_workers_forever": "celery_batch.streamer",
    "until_disconnect": "celery_batch.web.disconnect",
}

__all__ = [*_HOME, "__version__"]  # noqa: PLE0604 (every key is a string)


def __getattr__(name: str) -> object:
    try:
        home = _HOME[name]
    except KeyError:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg) from None
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
