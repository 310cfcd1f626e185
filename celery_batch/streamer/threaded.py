"""Batches in a thread of this process."""

from __future__ import annotations

import threading
from typing import Any, Unpack

from celery_batch.errors import LoadFailed, ModelError
from celery_batch.runtime import devices, registry
from celery_batch.runtime.outputs import owned
from celery_batch.runtime.runner import BatchRun, Runner
from celery_batch.streamer.base import BaseStreamer, StreamerOptions, WorkerPool
from celery_batch.streamer.model_adapters import Adapter, as_model, time_of
from celery_batch.streamer.request_queue import RequestQueue, Slot, broke_off

__all__ = ["ThreadedStreamer"]


class ThreadedStreamer(BaseStreamer):
    """
    Gathers single requests into batches for a model in this process.

    Its thread starts, and its model is loaded, with the first request.

    Args:
        predict_function: Takes a list of inputs and returns as many outputs; or a
            `Model` or `ManagedModel` class.
        batch_size: Most items in one call of it.
        max_latency: Most seconds an item waits for others while the thread is idle;
            after 2 ms without another item it leaves at once.
        worker_timeout: Most seconds that `predict`, and ``result()`` of a future, wait.
        options: `max_queue`, `max_batch_cost`, `cost`, `padded`, `sort_window` and `batch_by`.

    Raises:
        ConfigurationError: An argument is wrong.
    """

    def __init__(
        self,
        predict_function: Any,
        batch_size: int,
        max_latency: float = 0.1,
        worker_timeout: float = 20,
        **options: Unpack[StreamerOptions],
    ) -> None:
        model = as_model(predict_function)
        super().__init__(batch_size, max_latency, worker_timeout, model, **options)

    def _start_workers(self, request_queue: RequestQueue) -> WorkerPool:
        return _Feeder(request_queue, self._model, self._size)


class _Feeder:
    """The thread that runs the model."""

    def __init__(self, request_queue: RequestQueue, model: Adapter, size: int) -> None:
        self._request_queue = request_queue
        self._model = model
        self._size = size
        self._slot: Slot = request_queue.slot()
        name = f"celery_batch streamer of {model}"
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def stop(self, grace: float) -> None:
        """Wait for the batch that runs; a thread cannot be ended from outside."""
        if self._thread is not threading.current_thread():
            self._thread.join(grace)

    def _work(self) -> None:
        name = str(self._model)
        try:
            registry.warm(lambda: self._model, name, devices.discover()[0])
        except LoadFailed as error:
            self._request_queue.close(error)
            return
        runner = Runner(self._model.calls, name, most=self._size, cost=self._model.call_cost)
        while (requests := self._request_queue.take(self._slot)) is not None:
            items = [item for request in requests for item in request.item.items]
            outputs: list[Any] | ModelError
            try:
                run = BatchRun(runner, [items], alone=len(requests) == 1)
                outputs, call = owned(run.call()), time_of(run)
            except BaseException as error:  # noqa: BLE001 (the thread has to live on)
                outputs, call = broke_off(name, error), None
            self._request_queue.finish(self._slot, requests, outputs, call)
        self._model.unload()
