"""A streamer with worker processes on this machine."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pickle import dumps
from typing import Any, Unpack

from celery_batch.errors import ConfigurationError
from celery_batch.runtime.devices import discover
from celery_batch.streamer import worker_main
from celery_batch.streamer.base import BaseStreamer, StreamerOptions, WorkerPool
from celery_batch.streamer.model_adapters import (
    Adapter,
    as_model,
    device_names,
    process_environment,
)
from celery_batch.streamer.request_queue import RequestQueue
from celery_batch.streamer.worker_main import Plan
from celery_batch.streamer.worker_pool import ProcessPool

__all__ = ["Streamer"]

logger = logging.getLogger(__name__)


class Streamer(BaseStreamer):
    """
    Gathers single requests into batches for models in processes of their own.

    Args:
        predict_function_or_model: A function of a list that returns a list, or a
            `ManagedModel` or `Model` class; it has to be importable.
        batch_size: Most items in one call of it.
        max_latency: Most seconds an item waits for others while a worker is idle;
            after 2 ms without another item it leaves at once.
        worker_num: How many processes.
        cuda_devices: The GPUs to spread them over, process i on GPU i mod n; unless
            given, each sees all there are.
        model_init_args: For ``init_model`` of a `ManagedModel`, or for the `Model` class.
        model_init_kwargs: Likewise.
        wait_for_worker_ready: Return when the models are loaded, or after
            ``worker_timeout`` seconds.
        mp_start_method: How processes are started: spawn, forkserver or fork.
        worker_timeout: Most seconds that `predict`, and ``result()`` of a future, wait.
        options: `max_queue`, `max_batch_cost`, `cost`, `padded`, `sort_window` and `batch_by`.

    Raises:
        ConfigurationError: An argument is wrong.
        LoadFailed: With ``wait_for_worker_ready``, a model could not be loaded.
    """

    def __init__(
        self,
        predict_function_or_model: Any,
        batch_size: int,
        max_latency: float = 0.1,
        worker_num: int = 1,
        cuda_devices: Iterable[int | str] | int | str | None = None,
        model_init_args: Sequence[Any] | None = None,
        model_init_kwargs: Mapping[str, Any] | None = None,
        wait_for_worker_ready: bool = False,  # noqa: FBT001, FBT002 (service-streamer's signature)
        mp_start_method: str = "spawn",
        worker_timeout: float = 20,
        **options: Unpack[StreamerOptions],
    ) -> None:
        model = as_model(predict_function_or_model, model_init_args, model_init_kwargs)
        super().__init__(batch_size, max_latency, worker_timeout, model, **options)
        if worker_num < 1:
            raise ConfigurationError(f"worker_num: must be at least 1, got {worker_num!r}")
        methods = multiprocessing.get_all_start_methods()
        if mp_start_method not in methods:
            raise ConfigurationError(
                f"mp_start_method: must be one of {', '.join(methods)}, got {mp_start_method!r}"
            )
        self._devices: list[str] | None = None
        self._workers = worker_num
        self._method = mp_start_method
        self._given = _sendable(model, predict_function_or_model, mp_start_method)
        if worker_main.is_arriving():
            # A worker process imports the module that made the streamer, and does not use it.
            if sys._getframe(1).f_globals.get("__name__") == "__mp_main__":  # noqa: SLF001 (Python's)
                os._exit(worker_main.UNGUARDED)
            return
        self._devices = device_names(cuda_devices)
        self._begin()
        if wait_for_worker_ready:
            self._wait_for_worker_ready()

    def _wait_for_worker_ready(self, timeout: float | None = None) -> None:
        """Return when the models are loaded; programs for service-streamer call it."""
        self._begin()
        pool, limit = self._pool, self.worker_timeout if timeout is None else timeout
        if isinstance(pool, ProcessPool) and not pool.wait_until_loaded(limit):
            logger.warning("Some models are not loaded after %g s; requests wait for them", limit)

    def _start_workers(self, request_queue: RequestQueue) -> WorkerPool:
        if worker_main.is_arriving():
            os._exit(worker_main.UNGUARDED)
        plans = [self._plan(number) for number in range(self._workers)]
        return ProcessPool(request_queue, self._given, plans, self._method)

    def _plan(self, number: int) -> Plan:
        if self._devices is None:
            found = discover()
            env, device = process_environment(None, self._workers), found[number % len(found)]
        else:
            device = self._devices[number % len(self._devices)]
            env = process_environment(device, self._workers)
            device = "cuda:0" if device.startswith("cuda:") else device  # the only one it sees
        return Plan(env, device, self._devices is not None, self._size)


def _sendable(model: Adapter, given: Any, method: str) -> Adapter | bytes:
    """Return what can be sent to a worker process."""
    if method == "fork":
        return model
    main = sys.modules["__main__"]
    is_in_main = getattr(given, "__module__", None) == "__main__"
    has_file = os.path.exists(getattr(main, "__file__", None) or "")  # noqa: PTH110 (it may be no path)
    if is_in_main and not has_file and getattr(main, "__spec__", None) is None:
        raise ConfigurationError(
            f"{model} is defined in a notebook or at a prompt, where worker processes cannot"
            " import it from; put it into a module, or use ThreadedStreamer"
        )
    try:
        return dumps(model)
    except Exception as error:
        raise ConfigurationError(
            f"{model} cannot be sent to a worker process: {error}; define it at the top level"
            " of a module, or use ThreadedStreamer"
        ) from error
