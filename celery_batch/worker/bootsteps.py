"""Bootsteps of a worker that serves batch tasks."""

from __future__ import annotations

import logging
from functools import partial
from importlib.metadata import version
from typing import Any

from celery import bootsteps
from celery.concurrency.prefork import TaskPool as PreforkPool
from celery.exceptions import WorkerShutdown
from celery.platforms import EX_FAILURE

from celery_batch.compat import gc
from celery_batch.compat.billiard import read_before_flush
from celery_batch.compat.celery import defer_signals, reconnect_soon
from celery_batch.config import Settings
from celery_batch.errors import BatchError, ConfigurationError, LoadFailed
from celery_batch.runtime import registry
from celery_batch.worker.amqp.acks import AmqpAcks
from celery_batch.worker.amqp.reader import read_together
from celery_batch.worker.bulk import BulkPath
from celery_batch.worker.consumer_context import ConsumerContext
from celery_batch.worker.context import WorkerContext
from celery_batch.worker.control import commands
from celery_batch.worker.control.runtime_config import RuntimeConfig
from celery_batch.worker.control.served_tasks import ServedTasksEntry
from celery_batch.worker.executor.loader import load_failed, load_models
from celery_batch.worker.executor.warmup import WarmUp
from celery_batch.worker.intake import unrouted
from celery_batch.worker.intake.unrouted import announce
from celery_batch.worker.intake.validation import MessageValidator
from celery_batch.worker.metrics.snapshot import in_words, stats_of
from celery_batch.worker.redis.result_backend import notify_clients, stores_in_bulk
from celery_batch.worker.scheduling import prefetch
from celery_batch.worker.scheduling.concurrency_warning import ConcurrencyWarning
from celery_batch.worker.scheduling.routing import batch_tasks, served_tasks
from celery_batch.worker.scheduling.scheduler import Scheduler

__all__ = ["BatchConsumer", "BatchWorker"]

logger = logging.getLogger(__name__)

#: Seconds.  The pool is woken when a process ends, finds it not quite dead as a rule,
#: and would look again after 5 s; the batch's other items wait for that.
_LOOK_AFTER_DEAD = 0.25


#: Pools of green threads, by the modules of their classes.
_GREEN = ("gevent", "eventlet")


class BatchWorker(bootsteps.StartStopStep):  # type: ignore[misc]
    """
    Has the models loaded before the worker takes its first task.

    A model that cannot be loaded or warmed up is a failed start of the worker,
    not a worker that takes tasks and fails them.
    """

    requires = (
        "celery.worker.components:Pool",
        "celery_batch.worker.metrics.exporter:BatchMetrics",
    )

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self._context = WorkerContext.of(worker)
        self.tasks = self._context.tasks = served_tasks(worker.app)
        self._context.routed = frozenset(self._names)
        self._warm_up: WarmUp | None = None
        self._concurrency_warning = ConcurrencyWarning.unasked(worker, self.tasks, kwargs)
        self._listens = False
        if self.tasks:
            self._hold_enough(worker)
        notify_clients(worker.app, batch_tasks(worker.app))

    def create(self, worker: Any) -> None:
        """Prepare to hear from pool processes, before the first of them starts."""
        if not issubclass(worker.pool_cls, PreforkPool):
            return
        timeout = Settings.of(worker.app).load_timeout
        conf = worker.app.conf
        # A replacement that is slow to load is not a process that hangs.
        conf.worker_proc_alive_timeout = max(conf.worker_proc_alive_timeout, timeout)
        processes = worker.max_concurrency or worker.concurrency
        self._warm_up = WarmUp(self._names, processes, timeout, self._concurrency_warning)
        self._context.warm_up = self._warm_up
        # Who quits while models load would wait for them: a pool stops when its processes do.
        worker.pool.on_stop = worker.pool.on_terminate

    def start(self, worker: Any) -> None:
        """Return when every process of the pool is warm."""
        defer_signals()
        if self._concurrency_warning is not None:
            self._concurrency_warning.announce()
        try:
            _require_threads_of_its_own(worker, self.tasks)
            if self._warm_up is not None:
                self._warm_up.wait(worker.pool)
                del worker.pool.on_stop
            elif self.tasks:
                load_models(worker.app, self._names)
            else:
                registry.prepare_later(partial(load_models, worker.app, ()))
        except BatchError as error:
            self._fail(error)
        gc.freeze_existing()
        if self._warm_up is not None:
            gc.collect_less_often()
        for task in self.tasks:
            announce(task)
        unrouted.say_what_is_cold(worker.app, self.tasks)

    def stop(self, worker: Any) -> None:  # noqa: ARG002 (Celery's signature)
        """Let go of the models of this process, and of what was heard on."""
        registry.unload_all()
        if self._warm_up is not None:
            self._warm_up.close()

    terminate = stop

    def register_with_event_loop(self, worker: Any, hub: Any) -> None:
        """Go on listening, for processes that replace others; and look after the dead."""
        if self._warm_up is not None:
            self._warm_up.watch(hub)
            hub.call_repeatedly(_LOOK_AFTER_DEAD, worker.pool.maintain_pool)
            if not self._listens:  # once: this is called for each connection
                self._listens = True
                read_before_flush(worker.pool, hub)

    @property
    def _names(self) -> list[str]:
        return [task.name for task in self.tasks]

    def _hold_enough(self, worker: Any) -> None:
        wanted = prefetch.held_per_process(self.tasks)
        prefetch.warn_about_caps(worker, wanted)
        if worker.prefetch_multiplier != 0:  # 0 is Celery's word for no limit
            worker.prefetch_multiplier = max(worker.prefetch_multiplier, wanted)

    def _fail(self, error: BatchError) -> None:
        cause = error.__cause__ if isinstance(error, LoadFailed) else None
        logger.critical("This worker cannot start: %s", error, exc_info=cause)
        load_failed.send(sender=None, error=str(error))
        raise WorkerShutdown(EX_FAILURE)


def _require_threads_of_its_own(worker: Any, tasks: list[Any]) -> None:
    """
    Refuse a pool whose tasks run on the thread of the worker's loop, and stop it while they do.

    Raises:
        ConfigurationError: The pool is gevent's or eventlet's.
    """
    name = worker.pool_cls.__module__.rpartition(".")[2]
    if name in _GREEN and tasks:
        names = ", ".join(task.name for task in tasks)
        raise ConfigurationError(
            f"the {name} pool cannot run batch tasks ({names}): a model would stop the worker's"
            f" loop; leave --pool out, or give this worker other queues: --pool={name} -Q NAME"
        )


class BatchConsumer(bootsteps.StartStopStep):  # type: ignore[misc]
    """Keeps the lanes of the batch tasks, from one broker connection to the next."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self.validator = MessageValidator(consumer)
        self.scheduler = Scheduler(consumer, self.validator.refuse_read)
        self.bulk = BulkPath(consumer, self.scheduler, self.validator.read)
        self.presence = ServedTasksEntry(consumer, self.scheduler)
        self.runtime_config = RuntimeConfig(consumer, self.scheduler, self.presence)
        worker = WorkerContext.of(consumer.controller)
        consumer.batch_context = ConsumerContext(
            worker, self.validator, self.scheduler, self.runtime_config
        )
        self.acks: AmqpAcks | None = None
        self._reads_together = False
        self._fast_paths = ""
        reconnect_soon(consumer)
        commands.register()

    def start(self, consumer: Any) -> None:
        """Let batches leave."""
        prefetch.lift_disabled_prefetch(consumer, self.scheduler)
        self.validator.open()
        self.bulk.open()
        if not self.bulk.is_open:
            prefetch.read_what_is_useful(consumer, self.scheduler)
        self._go_together(consumer)
        self._log_fast_paths(consumer)
        self.join()

    def join(self) -> None:
        """Let batches leave on a connection whose messages may be read by Celery alone."""
        self.scheduler.open()
        self.runtime_config.open()
        self.presence.open()

    def _go_together(self, consumer: Any) -> None:
        is_amqp = consumer.connection.transport.driver_type == "amqp"
        if is_amqp and consumer.hub and consumer.app.conf.get("batch_bulk", True):
            self._reads_together = read_together(consumer.connection.connection, self.scheduler)
            self.scheduler.running_messages = self.acks = AmqpAcks(consumer, self.scheduler)

    def _log_fast_paths(self, consumer: Any) -> None:
        """Say at the start, and when it has changed, which fast paths this worker takes."""
        backend = consumer.app.backend
        paths = {
            "messages in bulk": self.bulk.is_open or self._reads_together,
            "acknowledgements in bulk": self.bulk.is_open or self.acks is not None,
            "results in bulk": stores_in_bulk(backend),
        }
        said = ", ".join(f"{path} {'on' if is_on else 'off'}" for path, is_on in paths.items())
        if said != self._fast_paths:
            logger.info("Fast paths: %s", said)
        self._fast_paths = said

    def stop(self, consumer: Any) -> None:
        """Give back what has not been sent to the pool."""
        restarting = consumer.blueprint.state == bootsteps.RUN
        if not restarting:
            self.presence.close()
        self.scheduler.close(restarting=restarting)
        if restarting:
            self.bulk.close()  # at a shutdown what runs is still ours until the channel closes
            self.acks = None

    def shutdown(self, consumer: Any) -> None:  # noqa: ARG002 (Celery's signature)
        """Send the last acknowledgements, while the connection is still there."""
        self.validator.close()
        self.bulk.flush()
        if self.acks is not None:
            self.acks.flush()

    def info(self, consumer: Any) -> dict[str, Any]:
        """Return the batch counters for ``celery inspect stats`` and Flower."""
        stats = stats_of(consumer)
        words = in_words(stats)
        shown = {"batches": stats.pop("tasks"), "batch_device": stats}
        return {**words, **shown, "celery_batch": version("celery-batch")}
