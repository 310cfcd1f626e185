"""What the checks know of an app, its servers, this machine and running workers.

It is collected before they run: a check sends no request.  None is what could not be
found out, and no check may take it for good or bad.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from celery_batch.cluster.state import reports_of, runs_batches
from celery_batch.compat.fast_paths import PathState

__all__ = ["PREFORK", "Facts", "Machine", "PayloadFacts", "Redis", "Server", "Torch", "Worker"]

#: Celery's names of the pool with processes.
PREFORK = ("prefork", "processes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Redis:
    """The state of a Redis; None where its access rules forbid to ask."""

    info: Mapping[str, Any] | None  # the answer to INFO
    snapshots: bool | None = True  # whether it takes snapshots
    scripts: bool = True  # whether this user may run scripts
    ahead: float | None = 0.0  # seconds by which its clock is ahead of this machine's

    @property
    def evicts(self) -> str:
        """The policy by which it evicts keys when memory is full; empty if it does not."""
        info = self.info or {}
        policy = info.get("maxmemory_policy", "noeviction")
        return str(policy) if info.get("maxmemory") and policy != "noeviction" else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The broker or the result backend."""

    #: ``redis``, ``amqp``, or what else Celery calls it; ``none`` for no results.
    kind: str
    #: Where it is, without the password.
    url: str = ""
    #: Why it could not be reached; empty if it could.
    error: str = ""
    #: As it calls itself.
    version: str = ""
    #: Whether it has told us that it accepts no messages, as RabbitMQ does in an alarm.
    is_blocked: bool = False
    #: Its state, if it is a Redis.
    redis: Redis | None = None
    #: The names in ``broker_transport_options`` that its transport knows.
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadFacts(Server):
    """Where large values lie."""

    # The kind is ``redis``, ``directory``, or an object store's scheme; ``none`` where there is no
    # store, ``off`` where the setting says so, ``unknown`` where the setting is wrong.

    refused: str = ""  # why it takes nothing from this user; empty if it does
    is_missing: bool = False  # whether it is a directory that does not exist
    expired: int | None = None  # files of a directory whose time is over; None for other stores
    overdue: int = 0  # those of them that a worker should have deleted by now

    @property
    def name(self) -> str:
        """Its URL, as workers report theirs; empty where there is no store."""
        return f"file://{self.url}" if self.kind == "directory" else self.url


@dataclass(frozen=True, slots=True, kw_only=True)
class Torch:
    """The torch that a worker on this machine would import."""

    version: str
    build: str = ""  # for which GPUs it was built, such as ``CUDA 12.8``; empty for none
    gpus: int = 0  # how many it can use


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine on which the check runs."""

    #: Cores that this process may use.
    cpus: int = 1
    #: The names of those that ``nvidia-smi`` shows, or the driver's files where there is no such
    #: program; None where there is neither.
    gpus: tuple[str, ...] | None = None
    #: Why ``nvidia-smi`` does not work; empty if it does, or is not there.
    driver: str = ""
    #: ``CUDA_VISIBLE_DEVICES``; None if it is not set.
    visible: str | None = None
    #: None if it is not installed, or there is no GPU and no setting names one.
    torch: Torch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A running worker, as it answers to remote control."""

    #: Its node name.
    name: str
    #: Its answer to ``stats``.
    stats: Mapping[str, Any]
    #: Its answer to ``batch_stats``.
    earlier: Mapping[str, Any] = field(default_factory=dict)
    #: The same, some seconds later.
    batch_stats: Mapping[str, Any] = field(default_factory=dict)
    #: The queues that it consumes; None if it was not asked, or did not answer.
    queues: frozenset[str] | None = None
    #: The names of all tasks of its app, likewise.
    knows: frozenset[str] | None = None
    #: Those of them that have an option of celery-batches, ``flush_every``.
    flushes: frozenset[str] = frozenset()

    @property
    def tasks(self) -> Mapping[str, Mapping[str, Any]]:
        """Its report of each batch task that it serves."""
        found = reports_of(self.batch_stats)
        return {name: report for name, report in found.items() if report["served"]}

    @property
    def runs_batches(self) -> bool:
        """Whether it runs celery_batch, and its app has batch tasks."""
        return runs_batches(self.stats)

    @property
    def fast_paths(self) -> tuple[PathState, ...]:
        """The states of its fast paths, as it says."""
        found = self.stats.get("batch_fast_paths") or {}
        return tuple(PathState(name, reason) for name, reason in found.items())

    @property
    def payload_store(self) -> str | None:
        """The URL of its payload store; empty if it has none, None if it does not say."""
        return self.stats.get("batch_payload_store")

    @property
    def pool(self) -> Mapping[str, Any]:
        """Celery's statistics of its pool."""
        return self.stats.get("pool") or {}

    @property
    def pool_module(self) -> str:
        """The module of its pool, such as ``celery.concurrency.prefork``."""
        return str(self.pool.get("implementation", "")).partition(":")[0]

    @property
    def error(self) -> str:
        """The error that it answered; empty if it answered none."""
        return str(self.stats.get("error") or self.batch_stats.get("error") or "")

    @property
    def has_answered(self) -> bool:
        """Whether it has said which batch tasks it serves, if it knows any."""
        return "tasks" in self.batch_stats or not (self.runs_batches or self.stats.get("error"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that the checks know."""

    app: Any
    #: What celery_batch refuses in options and settings; empty for nothing.
    trouble: str = ""
    tasks: tuple[Any, ...] = ()
    #: The queue of each batch task, by the task's name.
    queues: Mapping[str, str] = field(default_factory=dict)
    #: The names of other tasks that are routed to a queue of a batch task.
    ordinary: tuple[str, ...] = ()
    #: What is wrong with ordinary tasks that have options of batch tasks.
    misplaced: tuple[str, ...] = ()
    #: The serializers that are used or accepted and not installed, and what to do about each.
    no_serializers: Mapping[str, str] = field(default_factory=dict)
    #: The queues that any of its tasks are routed to; None if that is not known.
    routed: frozenset[str] | None = None
    #: The name of the pool that the settings choose.
    pool: str = "prefork"
    #: The setting ``batch_devices``; None if it is not set, or wrong.
    devices: tuple[str, ...] | None = None
    #: Where messages are.
    broker: Server
    #: Where results are.
    results: Server
    #: Where answers are kept, for tasks with ``cache_ttl``; None if no task has it.
    cache: Server | None = None
    #: Where large values lie; None if that is not known.
    payloads: PayloadFacts | None = None
    machine: Machine
    #: Those that have answered; None if they could not be asked.
    workers: tuple[Worker, ...] | None = ()
    #: Why they could not be asked; empty where the broker's error says it.
    unasked: str = ""
    #: Messages that wait in the broker, by queue.
    depths: Mapping[str, int] = field(default_factory=dict)
    #: Of celery_batch.
    version: str = ""
    #: Those of a caller here.
    fast_paths: tuple[PathState, ...] = ()

    @property
    def conf(self) -> Any:
        """The app's settings."""
        return self.app.conf

    @property
    def bulk(self) -> bool:
        """The setting ``batch_bulk``."""
        return bool(self.conf.get("batch_bulk", True))

    @property
    def transport_options(self) -> Mapping[str, Any]:
        """The setting ``broker_transport_options``."""
        return self.conf.broker_transport_options or {}
