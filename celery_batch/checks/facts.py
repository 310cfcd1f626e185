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
    """
    The state of a Redis; None where its access rules forbid to ask.

    Args:
        info: The answer to INFO.
        snapshots: Whether it takes snapshots.
        scripts: Whether this user may run scripts.
        ahead: Seconds by which its clock is ahead of this machine's.
    """

    info: Mapping[str, Any] | None
    snapshots: bool | None = True
    scripts: bool = True
    ahead: float | None = 0.0

    @property
    def evicts(self) -> str:
        """The policy by which it evicts keys when memory is full; empty if it does not."""
        info = self.info or {}
        policy = info.get("maxmemory_policy", "noeviction")
        return str(policy) if info.get("maxmemory") and policy != "noeviction" else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """
    The broker or the result backend.

    Args:
        kind: ``redis``, ``amqp``, or what else Celery calls it; ``none`` for no results.
        url: Where it is, without the password.
        error: Why it could not be reached; empty if it could.
        version: As it calls itself.
        redis: Its state, if it is a Redis.
        options: The names in ``broker_transport_options`` that its transport knows.
    """

    kind: str
    url: str = ""
    error: str = ""
    version: str = ""
    redis: Redis | None = None
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadFacts(Server):
    """
    Where large values lie.

    Args:
        kind: ``redis``, ``directory``, or an object store's scheme; ``none`` where there is no
            store, ``off`` where the setting says so, ``unknown`` where the setting is wrong.
        url: Where it is, without the password; the path of a directory.
        refused: Why it takes nothing from this user; empty if it does.
        is_missing: Whether it is a directory that does not exist.
        expired: Files of a directory whose time is over; None for other stores.
        overdue: Those of them that a worker should have deleted by now.
    """

    refused: str = ""
    is_missing: bool = False
    expired: int | None = None
    overdue: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Torch:
    """
    The torch that a worker on this machine would import.

    Args:
        version: Its version.
        build: For which GPUs it was built, such as ``CUDA 12.8``; empty for none.
        gpus: How many it can use.
    """

    version: str
    build: str = ""
    gpus: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """
    The machine on which the check runs.

    Args:
        cpus: Cores that this process may use.
        gpus: The names of those that ``nvidia-smi`` shows, or the driver's files where there
            is no such program; None where there is neither.
        driver: Why ``nvidia-smi`` does not work; empty if it does, or is not there.
        visible: ``CUDA_VISIBLE_DEVICES``; None if it is not set.
        torch: None if it is not installed, or there is no GPU and no setting names one.
    """

    cpus: int = 1
    gpus: tuple[str, ...] | None = None
    driver: str = ""
    visible: str | None = None
    torch: Torch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """
    A running worker, as it answers to remote control.

    Args:
        name: Its node name.
        stats: Its answer to ``stats``.
        earlier: Its answer to ``batch_stats``.
        batch_stats: The same, some seconds later.
        queues: The queues that it consumes; None if it was not asked, or did not answer.
        knows: The names of all tasks of its app, likewise.
        flushes: Those of them that have an option of celery-batches, ``flush_every``.
    """

    name: str
    stats: Mapping[str, Any]
    earlier: Mapping[str, Any] = field(default_factory=dict)
    batch_stats: Mapping[str, Any] = field(default_factory=dict)
    queues: frozenset[str] | None = None
    knows: frozenset[str] | None = None
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
        return "tasks" in self.batch_stats or not self.runs_batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """
    All that the checks know.

    Args:
        app: The Celery app.
        trouble: What celery_batch refuses in options and settings; empty for nothing.
        tasks: The app's batch tasks.
        queues: The queue of each batch task, by the task's name.
        ordinary: The names of other tasks that are routed to a queue of a batch task.
        routed: The queues that any of its tasks are routed to; None if that is not known.
        pool: The name of the pool that the settings choose.
        devices: The setting ``batch_devices``; None if it is not set, or wrong.
        broker: Where messages are.
        results: Where results are.
        cache: Where answers are kept, for tasks with ``cache_ttl``; None if no task has it.
        payloads: Where large values lie; None if that is not known.
        machine: This one.
        workers: Those that have answered; None if they could not be asked.
        unasked: Why they could not be asked; empty where the broker's error says it.
        depths: Messages that wait in the broker, by queue.
        version: Of celery_batch.
        fast_paths: Which would be on in a process here.
    """

    app: Any
    trouble: str = ""
    tasks: tuple[Any, ...] = ()
    queues: Mapping[str, str] = field(default_factory=dict)
    ordinary: tuple[str, ...] = ()
    routed: frozenset[str] | None = None
    pool: str = "prefork"
    devices: tuple[str, ...] | None = None
    broker: Server
    results: Server
    cache: Server | None = None
    payloads: PayloadFacts | None = None
    machine: Machine
    workers: tuple[Worker, ...] | None = ()
    unasked: str = ""
    depths: Mapping[str, int] = field(default_factory=dict)
    version: str = ""
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
