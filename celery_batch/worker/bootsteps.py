"""Bootsteps of a worker that serves batch tasks."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from functools import partial
from importlib.metadata import version
from typing import Any

from celery import bootsteps
from celery.backends.redis import RedisBackend, SentinelBackend
from celery.concurrency.prefork import TaskPool as PreforkPool
from celery.concurrency.thread import TaskPool as ThreadsPool
from celery.exceptions import WorkerShutdown
from celery.platforms import EX_FAILURE
from celery.worker.consumer.consumer import Evloop

import celery_batch.worker.control.commands  # noqa: F401 (adds the remote control commands)
from celery_batch.batching.policy import BatchPolicy
from celery_batch.compat import gc
from celery_batch.compat.billiard import (
    PoolPipe,
    finish_partial_reads,
    read_before_flush,
)
from celery_batch.compat.celery import (
    defer_signals,
    fire_on_time,
    reconnect_soon,
    release_starter,
)
from celery_batch.compat.fast_paths import FastPaths, PathState, states_in_words
from celery_batch.compat.kombu_redis import refuse_replicas
from celery_batch.config import LARGEST_BATCH, Settings, milliseconds_warnings, policy_of
from celery_batch.errors import BatchError, ConfigurationError, LoadFailed
from celery_batch.items.functions import item_key_of
from celery_batch.payloads.app_payloads import AppPayloads
from celery_batch.payloads.release import PayloadRelease
from celery_batch.runtime import registry
from celery_batch.worker.bulk import BulkPath
from celery_batch.worker.consumer_context import ConsumerContext
from celery_batch.worker.context import WorkerContext
from celery_batch.worker.control.runtime_config import RuntimeConfig
from celery_batch.worker.control.served_tasks import ServedTasksEntry
from celery_batch.worker.dispatch.job_submitter import overlap_state
from celery_batch.worker.executor.loader import load_failed, load_models
from celery_batch.worker.executor.thread_pipeline import overlap_in
from celery_batch.worker.executor.warmup import WarmUp, end_loading
from celery_batch.worker.intake.request import wants_events
from celery_batch.worker.intake.validation import MessageValidator
from celery_batch.worker.metrics.exporter import BatchMetrics
from celery_batch.worker.metrics.snapshot import in_words, stats_of
from celery_batch.worker.redis.answer_cache import check_caches
from celery_batch.worker.redis.result_backend import notify_clients
from celery_batch.worker.scheduling import prefetch
from celery_batch.worker.scheduling.routing import (
    batch_tasks,
    misplaced_options,
    routed_queues,
    served_tasks,
)
from celery_batch.worker.scheduling.scheduler import Scheduler

__all__ = [
    "ROUTE_IT_HERE",
    "BatchConsumer",
    "BatchWorker",
    "attach_steps",
    "log_not_loaded",
    "log_policy",
]

logger = logging.getLogger(__name__)

#: Seconds.  The pool is woken when a process ends, usually finds it still alive,
#: and would look again after 5 s; the batch's other items wait for that.
_MAINTAIN_POOL_EVERY = 0.25

#: Pools of green threads, by the modules of their classes.
_GREEN = ("gevent", "eventlet")

#: What the user can do about a model that is loaded by the first request of its task.
ROUTE_IT_HERE = "to have it loaded at the start, route the task here (task_routes)"


class BatchWorker(bootsteps.StartStopStep):  # type: ignore[misc]
    """Loads the models before the worker takes its first task; else the worker does not start."""

    requires = (
        "celery.worker.components:Pool",
        BatchMetrics,
    )

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self._context = WorkerContext.of(worker)
        self.tasks = self._context.tasks = served_tasks(worker.app)
        check_caches(self.tasks)
        if self.tasks:
            AppPayloads.of(worker.app)  # raises for a store that is not known
        self._context.routed = frozenset(self._names)
        self._warm_up: WarmUp | None = None
        _warn_of_default_concurrency(worker, self.tasks, kwargs)
        self._is_registered = False
        if self.tasks:
            wanted = prefetch.messages_per_process(self.tasks)
            prefetch.warn_about_limits(worker, wanted)
            if worker.prefetch_multiplier != 0:  # Celery's value for no limit
                worker.prefetch_multiplier = max(worker.prefetch_multiplier, wanted)
        notify_clients(worker.app, batch_tasks(worker.app))

    def create(self, worker: Any) -> None:
        """Prepare to receive the reports of pool processes, before the first of them starts."""
        if not issubclass(worker.pool_cls, PreforkPool):
            return
        timeout = Settings.of(worker.app).load_timeout
        conf = worker.app.conf
        # A replacement that is slow to load is not a process that hangs.
        conf.worker_proc_alive_timeout = max(conf.worker_proc_alive_timeout, timeout)
        processes = worker.max_concurrency or worker.concurrency
        self._warm_up = WarmUp(self._names, processes, timeout)
        self._context.warm_up = self._warm_up
        # A cold shutdown stops the pool, which would wait for models that load.
        worker.pool.on_stop = partial(end_loading, worker.pool)

    def start(self, worker: Any) -> None:
        """Return when every process of the pool is warm."""
        defer_signals()
        try:
            _refuse_own_dead_letters(worker.app)
            _refuse_green_threads(worker, self.tasks)
            if self._warm_up is not None:
                self._warm_up.wait(worker.pool)
                del worker.pool.on_stop
                finish_partial_reads(worker.pool)
            elif self.tasks:
                load_models(worker.app, self._names)
            else:
                registry.prepare_later(partial(load_models, worker.app, ()))
        except BatchError as error:
            release_starter(worker)
            if self._warm_up is not None:
                end_loading(worker.pool)
            self._fail(error)
        overlap_in(worker.pool, worker.app)
        gc.freeze_existing()
        if self._warm_up is not None:
            gc.collect_less_often()
        for task in self.tasks:
            log_policy(task)
        for text in misplaced_options(worker.app):
            logger.warning("%s", text)
        log_not_loaded(worker.app, self.tasks)

    def stop(self, worker: Any) -> None:  # noqa: ARG002 (Celery's signature)
        """Unload the models of this process, and close the socket of the pool's reports."""
        registry.unload_all()
        if self._warm_up is not None:
            self._warm_up.close()

    terminate = stop

    def register_with_event_loop(self, worker: Any, hub: Any) -> None:
        """Receive the reports of new pool processes, and replace dead ones soon."""
        if self._warm_up is not None:
            self._warm_up.watch(hub)
            hub.call_repeatedly(_MAINTAIN_POOL_EVERY, worker.pool.maintain_pool)
            if not self._is_registered:  # once: this is called for each connection
                self._is_registered = True
                read_before_flush(worker.pool, hub)

    @property
    def _names(self) -> list[str]:
        return [task.name for task in self.tasks]

    def _fail(self, error: BatchError) -> None:
        cause = error.__cause__ if isinstance(error, LoadFailed) else None
        if isinstance(cause, ConfigurationError):
            cause = None
        logger.critical("This worker cannot start: %s", error, exc_info=cause)
        load_failed.send(sender=None, error=str(error))
        raise WorkerShutdown(EX_FAILURE)


def _warn_of_default_concurrency(worker: Any, tasks: list[Any], given: dict[str, Any]) -> None:
    """Log that each core gets a process with its own copy of the models, as is Celery's default."""
    is_chosen = given.get("concurrency") or worker.app.conf.worker_concurrency
    models = sorted({task.model.__qualname__ for task in tasks if task.model})
    is_single = worker.concurrency == 1 or not issubclass(worker.pool_cls, PreforkPool)
    if models and not (is_chosen or given.get("autoscale") or is_single):
        logger.warning(
            "--concurrency is not set: each of %d pool processes, one for each core, loads %s;"
            " start the worker with --concurrency=1, or one process for each GPU",
            worker.concurrency,
            ", ".join(models),
        )


def _refuse_green_threads(worker: Any, tasks: list[Any]) -> None:
    """Refuse a pool whose tasks would block the thread of the worker's event loop."""
    name = worker.pool_cls.__module__.rpartition(".")[2]
    if name in _GREEN and tasks:
        names = ", ".join(task.name for task in tasks)
        raise ConfigurationError(
            f"the {name} pool cannot run batch tasks ({names}): a model would stop the worker's"
            f" loop; leave --pool out, or give this worker other queues: --pool={name} -Q NAME"
        )


def _refuse_own_dead_letters(app: Any) -> None:
    """Refuse to consume the dead-letter queue: its messages would be refused, and written again."""
    name = Settings.of(app).dead_letter_queue
    if name in app.amqp.queues.consume_from:
        raise ConfigurationError(
            f"batch_dead_letter_queue: this worker consumes {name!r}, and would refuse its messages"
            f" again and again; name a queue that no worker consumes, or exclude it: -X {name}"
        )


class BatchConsumer(bootsteps.StartStopStep):  # type: ignore[misc]
    """Has the parts of the consumer that batch its requests, over all its connections."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self.validator = MessageValidator(consumer)
        self.scheduler = Scheduler(consumer, self.validator.refusals.refuse_read)
        fire_on_time(consumer.timer)
        self.bulk = BulkPath(consumer, self.scheduler, self.validator)
        self.served_tasks = ServedTasksEntry(consumer, self.scheduler)
        self.runtime_config = RuntimeConfig(consumer, self.scheduler, self.served_tasks)
        worker = WorkerContext.of(consumer.controller)
        consumer.batch_context = ConsumerContext(
            worker, self.validator, self.scheduler, self.runtime_config
        )
        self._fast_paths = ""
        reconnect_soon(consumer, refuse_replicas)

    def start(self, consumer: Any) -> None:
        """Let batches leave."""
        prefetch.override_disabled_prefetch(consumer, self.scheduler.policy)
        self.validator.open()
        self.bulk.open()
        self.scheduler.reads_singly = not self.bulk.reads
        if not self.bulk.reads:
            prefetch.limit_to_capacity(consumer, self.scheduler.fetch_limits)
        self._log_fast_paths(consumer)
        PayloadRelease.of(consumer.app).start()
        self.open()

    def open(self) -> None:
        """Let batches leave; the messages of this connection may be read by Celery alone."""
        self.scheduler.open()
        self.runtime_config.open()
        self.served_tasks.open()

    def _log_fast_paths(self, consumer: Any) -> None:
        """Log the fast paths of this worker at its start, and when they have changed."""
        text = states_in_words(self._path_states(consumer))
        if text != self._fast_paths:
            logger.info("Fast paths: %s", text)
        self._fast_paths = text

    def _path_states(self, consumer: Any) -> tuple[PathState, ...]:
        return (*self.bulk.states(), *_path_states(consumer))

    def stop(self, consumer: Any) -> None:
        """Give back the requests that have not been sent to the pool."""
        restarting = consumer.blueprint.state == bootsteps.RUN
        if not restarting:
            self.served_tasks.close()
        self.scheduler.close(restarting=restarting)
        if restarting:
            self.bulk.close()  # at a shutdown running messages are ours until the channel closes

    def shutdown(self, consumer: Any) -> None:
        """Send the last acknowledgements, while the connection is still there."""
        self.validator.refusals.close()
        self.bulk.flush()
        PayloadRelease.of(consumer.app).close()

    def info(self, consumer: Any) -> dict[str, Any]:
        """Return the batch counters for ``celery inspect stats`` and Flower."""
        stats = stats_of(consumer)
        words = in_words(stats)
        shown = {"batches": stats.pop("tasks"), "batch_device": stats}
        paths = {state.name: state.reason for state in self._path_states(consumer)}
        store = AppPayloads.of(consumer.app).store
        return {
            **words,
            **shown,
            "batch_fast_paths": paths,
            "batch_payload_store": "" if store is None else store.name,
            "celery_batch": version("celery-batch"),
        }


def _name_of(pool: Any) -> str:
    """Return what ``--pool`` calls it, or what its base is called there."""
    for kind, name in ((PreforkPool, "prefork"), (ThreadsPool, "threads")):
        if isinstance(pool, kind):
            return name
    return str(type(pool).__module__.rpartition(".")[2])


def _path_states(consumer: Any) -> Iterator[PathState]:
    """Yield the states of the fast paths that are the same on all connections of a worker."""
    app, controller = consumer.app, consumer.controller
    paths = FastPaths.of(app)
    eventer, tasks = consumer.event_dispatcher, batch_tasks(app)
    has_events = bool(tasks) and all(wants_events(eventer, task) for task in tasks)
    events = "task events are on" if has_events else ""
    yield PathState("intake", paths.state("intake").reason or events)
    for path in ("write_ahead", "overlap"):
        name, most = _name_of(consumer.pool), controller.max_concurrency or controller.concurrency
        state = overlap_state(app, most, path, pool=name)
        if path == "write_ahead" and isinstance(consumer.pool, PreforkPool):
            state = PathState(path, state.reason or PoolPipe.why_not(consumer.pool))
        yield state
    elsewhere = ""
    if type(app.backend) not in (RedisBackend, SentinelBackend):
        elsewhere = f"results are in {type(app.backend).__name__}"
    for path in ("trace", "store", "notify"):
        yield PathState(path, paths.state(path).reason or elsewhere)


def attach_steps(consumer: Any) -> None:
    """Attach our steps to the consumer of a worker that started before the first batch task did."""
    # Celery reads an app's steps when it makes a worker, and a batch task adds ours when it is
    # bound.  This is called with the first message, on the thread that reads messages.
    worker = consumer.controller
    logger.info("The first batch task was defined after this worker's start: it is served now")
    BatchMetrics(worker)  # which registers in the context of the worker
    notify_clients(worker.app, batch_tasks(worker.app))
    overlap_in(worker.pool, worker.app)
    step = BatchConsumer(consumer)
    # Another list: Celery is still going through the old one, whose last step is running.
    steps = list(consumer.steps)
    ends = [place for place, each in enumerate(steps) if isinstance(each, Evloop)]
    steps.insert(ends[0] if ends else len(steps), step)
    consumer.steps = steps
    consumer.blueprint.started += 1
    step.open()


def log_policy(task: Any) -> None:
    """Log when the batches of a task leave."""
    policy = policy_of(task)
    if not task.traces_items:  # of celery-batches, whose names they are
        every, interval = policy.max_batch_size, policy.max_wait
        logger.info("%s: flush_every %d, flush_interval %g s", task.name, every, interval)
        return
    for warning in milliseconds_warnings(task.name, policy):
        logger.warning("%s", warning)
    logger.info(
        "%s: batches of up to %s, max_wait %g s, linger %g s%s",
        task.name,
        _limit(policy),
        policy.max_wait,
        policy.linger_seconds,
        "".join(f", {each}" for each in _more_options(task, policy)),
    )


def _limit(policy: BatchPolicy) -> str:
    """Return how large batches may be, as words."""
    if policy.max_batch_cost is None:
        return str(policy.max_batch_size)
    cost = f"{policy.max_batch_cost:g} of {'padded cost' if policy.padded else 'cost'}"
    if policy.max_batch_size == LARGEST_BATCH:
        return cost
    return f"{cost} and {policy.max_batch_size} rows"


def _more_options(task: Any, policy: BatchPolicy) -> Iterator[str]:
    """Yield what is set of the options that most tasks do not have, as words."""
    if item_key_of(task) is not None:
        yield "batch_by"
    for option in ("batch_sizes", "batch_lengths"):
        if steps := getattr(policy, option):
            yield f"{option} {' '.join(map(str, steps))}"
    if policy.target_latency is not None:
        sheds = " with shed" if policy.shed else ""
        yield f"target_latency {policy.target_latency:g} s{sheds}"
    if task.dedupe:
        yield "dedupe"
    if task.cache_ttl is not None:
        yield f"cache_ttl {task.cache_ttl:g} s"
    if policy.device_share != BatchPolicy().device_share:
        yield f"device_share {policy.device_share:g}"


def log_not_loaded(app: Any, routed: Collection[Any]) -> None:
    """Log which batch tasks may come to this worker and find no model loaded."""
    queues = app.amqp.queues.consume_from
    if not routed and not routed_queues(app).intersection(queues):
        logger.warning(
            "-Q %s: no batch task is routed to the queues of this worker. A task that is sent"
            " here by the name of the queue is batched; its first request loads the model, and"
            " waits for it; %s",
            ",".join(queues),
            ROUTE_IT_HERE,
        )
        return
    names = [task.name for task in batch_tasks(app) if task.model and task not in routed]
    if names:
        logger.info(
            "Not loaded at the start, since they are routed to other queues: %s", ", ".join(names)
        )
