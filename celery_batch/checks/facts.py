"""

What is known of an app, its servers, this machine and running workers.

Plain values, gathered beforehand: a check reads them and asks nobody.  None is
what could not be found out, and no check may take it for good or bad.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = [
    "Conf",
    "Facts",
    "Machine",
    "Redis",
    "Server",
    "Task",
    "TaskStats",
    "Torch",
    "Worker",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """
    One batch task, its options and the app's settings merged.

    Args:
        name: Celery's name of it.
        queue: Where its messages go.
        max_batch_size: Most rows in one model call.
        max_wait: Seconds, see the glossary.
        linger: Seconds, or None where the task and the app say nothing.
        acks_late: Whether messages are acknowledged after their results are stored.
        ignores_results: Whether nobody may ask for its results.
        serializer: In which its callers write messages.
        time_limit: Seconds after which a batch's process is ended.
        soft_time_limit: Seconds after which a batch is interrupted.
        rate_limit: Celery's, such as ``"10/s"``.
        priority: Of calls that name none.
        priorities: Whether its queue on RabbitMQ has been given priorities.
        is_quorum: Whether it is declared as a quorum queue.
    """

    name: str
    queue: str = "celery"
    max_batch_size: int = 32
    max_wait: float = 0.01
    linger: float | None = None
    acks_late: bool = True
    ignores_results: bool = False
    serializer: str = "json"
    time_limit: float | None = None
    soft_time_limit: float | None = None
    rate_limit: str | None = None
    priority: int = 0
    priorities: bool = False
    is_quorum: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Conf:
    """The app's settings that a check asks for, by Celery's names without their prefixes."""

    pool: str = "prefork"
    concurrency: int | None = None
    prefetch_multiplier: int = 4
    eta_task_limit: int | None = None
    disable_prefetch: bool = False
    always_eager: bool = False
    accept_content: tuple[str, ...] = ("json",)
    result_serializer: str = "json"
    result_accept_content: tuple[str, ...] | None = None
    result_expires: float | None = 86400.0
    max_tasks_per_child: int | None = None
    max_memory_per_child: int | None = None
    bulk: bool = True
    devices: tuple[str, ...] | None = None
    transport_options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Redis:
    """
    What a Redis says of itself.

    Args:
        version: Such as ``(7, 2, 4)``.
        policy: Its ``maxmemory-policy``.
        maxmemory: Bytes it may use; 0 for any.
        used: Bytes it uses.
        appendonly: Whether it keeps an append-only file.
        snapshots: Whether it takes snapshots.
        scripts: Whether we may run scripts.
        ahead: Seconds by which its clock is ahead of this machine's.

    What its access rules keep from this user is None.
    """

    version: tuple[int, ...] | None = (7, 2, 0)
    policy: str | None = "noeviction"
    maxmemory: int | None = 0
    used: int | None = 0
    appendonly: bool | None = True
    snapshots: bool | None = True
    scripts: bool = True
    ahead: float | None = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """
    The broker, or where results are stored.

    Args:
        kind: ``redis``, ``amqp``, or what else Celery calls it; ``none`` for no results.
        url: Where it is, without the password.
        error: Why it could not be asked; empty if it answered.
        version: As it calls itself.
        redis: More, if it is one.
        options: Of ``broker_transport_options``, the names that its transport knows.
    """

    kind: str
    url: str = ""
    error: str = ""
    version: str = ""
    redis: Redis | None = None
    options: tuple[str, ...] = ()


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
        torch: None if there is none, or no GPU for it and nobody wants one.
    """

    cpus: int = 1
    gpus: tuple[str, ...] | None = None
    driver: str = ""
    visible: str | None = None
    torch: Torch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStats:
    """
    One batch task in one worker, as that worker tells it.

    Args:
        max_batch_size: The policy that it runs by.
        max_wait: Seconds, likewise.
        batches: How many have left while it was looked at, for some seconds.
        rows: How many rows were in them.
        waiting: Requests that wait in the worker.
        safe_size: Rows that fit into memory, where a batch has not.
        losses: Times a process has died.
        routed: Whether the task is routed to a queue of the worker.
        steered: Whether an operator has changed its policy.
        halted: Whether an operator has paused or drained it.
        model: Seconds in the model that 99 of 100 batches have stayed below.
    """

    max_batch_size: int
    max_wait: float
    batches: int = 0
    rows: int = 0
    waiting: int = 0
    safe_size: int | None = None
    losses: int = 0
    routed: bool = True
    steered: bool = False
    halted: bool = False
    model: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """
    A worker that is up.

    Args:
        name: Its node name.
        pool: The module of its pool, such as ``celery.concurrency.prefork``.
        processes: Batches that can run at once.
        prefetch: Most messages it may hold; 0 for any number.
        max_tasks_per_child: After how many batches a process is replaced.
        devices: Where its models live.
        version: Its celery_batch, where it says.
        task_stats: By the name of the task.
        has_told: Whether it has said which these are, if it knows any.
        error: Why it could not say it; empty if it has, or has not answered.
        queues: What it consumes; None where nobody asked, or it did not say.
        knows: The names of all tasks of its app, likewise.
    """

    name: str
    pool: str = ""
    processes: int | None = None
    prefetch: int | None = None
    max_tasks_per_child: int | None = None
    devices: tuple[str, ...] = ()
    version: str = ""
    task_stats: Mapping[str, TaskStats] = field(default_factory=dict)
    has_told: bool = True
    error: str = ""
    queues: frozenset[str] | None = None
    knows: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """
    All that a checkup knows.

    Args:
        trouble: What celery_batch itself refuses in options and settings.
        tasks: The app's batch tasks.
        routed: The queues that any of its tasks are routed to; None if that is not known.
        conf: The app's settings.
        broker: Where messages are.
        results: Where results are.
        machine: This one.
        workers: Those that have answered; None if nobody could be asked.
        unasked: Why nobody could be asked; empty where the broker's error says it.
        depths: Messages that wait in the broker, by queue.
        version: Our own.
    """

    trouble: tuple[str, ...] = ()
    tasks: tuple[Task, ...] = ()
    routed: frozenset[str] | None = None
    conf: Conf = field(default_factory=Conf)
    broker: Server = field(default_factory=lambda: Server(kind="redis", redis=Redis()))
    results: Server = field(default_factory=lambda: Server(kind="redis", redis=Redis()))
    machine: Machine = field(default_factory=Machine)
    workers: tuple[Worker, ...] | None = ()
    unasked: str = ""
    depths: Mapping[str, int] = field(default_factory=dict)
    version: str = ""
