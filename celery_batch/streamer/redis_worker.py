"""The workers of service-streamer on Redis: Celery workers with one model each."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from celery import Celery, signals
from celery.apps.worker import Worker
from celery.utils.nodenames import gethostname

from celery_batch.errors import ConfigurationError, LoadFailed
from celery_batch.runtime import devices
from celery_batch.runtime.model import Model
from celery_batch.serialization.arrays import register_arrays_as_lists
from celery_batch.streamer import process_supervisor
from celery_batch.streamer.model_adapters import (
    as_model,
    cost_of,
    device_names,
    process_environment,
)
from celery_batch.streamer.parent_death import end_with_parent
from celery_batch.streamer.process_supervisor import Job, keep_running
from celery_batch.streamer.redis_app import DEFAULT, app_for, queue_of, task_of
from celery_batch.task import model_task
from celery_batch.worker.executor.loader import load_failed

__all__ = [
    "RedisWorker",
    "StreamWorker",
    "model_class_of",
    "run_redis_workers_forever",
    "serve",
]

#: They log two lines for each item, which is too much for a service.
_ITEM_LOGGERS = ("celery.app.trace", "celery.worker.strategy")


def serve(app: Celery, queue: str, *, pool: str) -> NoReturn:
    """Serve a queue until a signal or a remote command ends this process."""
    worker = _Worker(
        app=app,
        hostname=f"{queue}-{os.getpid()}@{gethostname()}",
        pool_cls=pool,
        concurrency=1,
        queues=[queue],
        loglevel=_log_level(),
        quiet=True,
        without_mingle=True,
        without_gossip=True,
    )
    # A pool process may have its worker killed before Celery could tie the two together.
    pid = os.getpid()
    signals.worker_process_init.connect(lambda **_: end_with_parent(pid), weak=False)
    signals.worker_ready.connect(
        lambda **_: process_supervisor.report(process_supervisor.LOADED), weak=False
    )
    load_failed.connect(_report_failure)
    worker.start()
    raise SystemExit(worker.exitcode or 0)


class _Worker(Worker):  # type: ignore[misc]
    """Celery's, but for SIGHUP, at which Celery's would run the program anew."""

    def install_platform_tweaks(self, worker: Any) -> None:
        super().install_platform_tweaks(worker)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGHUP, signal.getsignal(signal.SIGTERM))


def _log_level() -> int:
    """Return the level to log at: the program's own, or INFO without a line for each item."""
    root = logging.getLogger()
    if root.handlers:
        return root.getEffectiveLevel()
    for name in _ITEM_LOGGERS:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.WARNING)
    return logging.INFO


def _report_failure(error: str, **_: Any) -> None:
    # A pool process reports a whole traceback, which is in the log; its last line is enough here.
    process_supervisor.report(
        process_supervisor.UNLOADED, error.rpartition(f"{LoadFailed.__name__}: ")[2].strip()
    )


def model_class_of(
    given: Any, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
) -> type[Model]:
    """Return a `Model` class for what the user gave; see `as_model`."""
    adapter = as_model(given, args, kwargs)
    kind: Any = type(adapter)

    class Streamed(kind):  # type: ignore[misc]
        """The model of a streamer's worker."""

        def __init__(self) -> None:
            self.__dict__.update(vars(adapter))

        def load(self, device: str) -> None:
            super().load(device)
            register_arrays_as_lists()

    Streamed.__name__ = Streamed.__qualname__ = str(adapter).removesuffix(".predict")
    return Streamed


class RedisWorker:
    """
    A Celery worker that answers the items of a prefix with one model.

    A model's class is loaded in a process of the worker's, on its GPU, which is replaced
    if it dies.  A function, or an instance, stays in this process, which may have loaded
    a model already.

    Args:
        model_class: A `ManagedModel` or `Model` class, or a predict function.
        batch_size: Most items in one call of the model.
        max_latency: Most seconds an item waits for others while the model is idle; a lone
            one does not wait for it.
        redis_broker: As for `RedisStreamer`.
        prefix: Which model this is, as for `RedisStreamer`.
        model_init_args: Positional arguments of ``init_model``.
        model_init_kwargs: Keyword arguments of ``init_model``.
        options: Options of the Celery task, such as ``autoretry_for`` or ``time_limit``.

    Raises:
        ConfigurationError: An argument is invalid.
    """

    def __init__(
        self,
        model_class: Any,
        batch_size: int,
        max_latency: float = 0.1,
        redis_broker: str = DEFAULT,
        prefix: str = "",
        model_init_args: Sequence[Any] | None = None,
        model_init_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        #: The queue that this worker consumes.
        self.queue = queue_of(prefix)
        self.prefix = prefix
        self._given = model_class, model_init_args, model_init_kwargs
        self._broker = redis_broker
        self._options = {"max_batch_size": batch_size, "max_wait": max_latency, **options}
        if options.get("max_batch_cost") is not None:
            self._options.setdefault("cost", cost_of(model_class))
        self._make_app()  # errors are raised here, and not in a process that is started later

    def _make_app(self, **settings: Any) -> Celery:
        app = app_for(
            self._broker,
            task_default_queue=self.queue,
            # A program that has set up its logging keeps it.
            worker_hijack_root_logger=not logging.getLogger().handlers,
            worker_redirect_stdouts=False,
            **settings,
        )
        model = model_class_of(*self._given)
        # Not shared: the program's other Celery apps get no such task.
        model_task(app, model, name=task_of(self.prefix), shared=False, **self._options)
        return app

    def run_forever(self, gpu_id: int | str | None = None) -> NoReturn:
        """
        Run the worker until a signal ends this process.

        Args:
            gpu_id: The GPU to live on; None for the first that can be seen.

        Raises:
            SystemExit: The worker has ended, or could not start.
            ConfigurationError: There is no such GPU, or an option is wrong.
        """
        is_in_process = not isinstance(self._given[0], type)
        names = device_names(gpu_id)
        if is_in_process:
            if names:
                devices.pin(0, names)
            names = ["cpu"]  # the function chooses where its model lives
        app = self._make_app(batch_devices=names)
        serve(app, self.queue, pool="threads" if is_in_process else "prefork")


class StreamWorker(RedisWorker):
    """
    The worker of service-streamer's oldest tutorial.

    Args:
        predict_function: As for `RedisWorker`, like all arguments.
        batch_size: Most items in one call.
        max_latency: Most seconds an item waits for others while the model is idle.
        more: ``redis_broker``, ``prefix`` and the others of `RedisWorker`.
    """

    def __init__(
        self,
        predict_function: Callable[[list[Any]], Sequence[Any]],
        batch_size: int,
        max_latency: float = 0.1,
        **more: Any,
    ) -> None:
        super().__init__(predict_function, batch_size, max_latency, **more)

    def run(self) -> NoReturn:
        """
        Run the worker until a signal ends this process.

        Raises:
            SystemExit: The worker has ended, or could not start.
        """
        self.run_forever()


def run_redis_workers_forever(
    model_class: Any,
    batch_size: int,
    max_latency: float = 0.1,
    worker_num: int = 1,
    cuda_devices: Iterable[int | str] | int | str | None = None,
    redis_broker: str = DEFAULT,
    prefix: str = "",
    mp_start_method: str = "spawn",
    model_init_args: Sequence[Any] | None = None,
    model_init_kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> None:
    """
    Run worker processes until this one ends; those that die are replaced.

    Args:
        model_class: As for `RedisWorker`, like all arguments without a description of their own.
        batch_size: Most items in one call of a model.
        max_latency: Most seconds an item waits for others while a model is idle.
        worker_num: How many workers, each with a model of its own.
        cuda_devices: The GPUs that they are spread over, worker i on device i mod n; None
            for the first that can be seen.
        redis_broker: Where the Redis is.
        prefix: Which model this is.
        mp_start_method: How processes are started: ``"spawn"``, ``"fork"`` or ``"forkserver"``.
        model_init_args: Positional arguments of ``init_model``.
        model_init_kwargs: Keyword arguments of ``init_model``.
        options: Options of the Celery task.

    Raises:
        ConfigurationError: An argument is wrong, or the call is not guarded by
            ``if __name__ == "__main__"``.
        LoadFailed: A process could not start.
    """
    worker = RedisWorker(
        model_class,
        batch_size,
        max_latency,
        redis_broker,
        prefix,
        model_init_args,
        model_init_kwargs,
        **options,
    )
    if worker_num < 1:
        raise ConfigurationError(f"worker_num: must be at least 1, got {worker_num!r}")
    names: Sequence[str | None] = device_names(cuda_devices) or (None,)
    jobs = [
        _job(worker, number, names[number % len(names)], worker_num) for number in range(worker_num)
    ]
    keep_running(jobs, mp_start_method)


def _job(worker: RedisWorker, number: int, device: str | None, workers: int) -> Job:
    env, gpu_id = process_environment(device, workers), device
    if workers == 1:
        env.pop("OMP_NUM_THREADS", None)  # it has all cores, and its libraries know better
    if devices.VISIBLE in env:
        gpu_id = None  # the only one that it can see
    return Job(f"{worker.queue} worker {number}", worker.run_forever, (gpu_id,), env)
