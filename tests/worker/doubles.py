"""Doubles of what a scheduler uses: requests, a pool, a consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from celery import Celery
from celery.exceptions import TaskRevokedError
from celery.worker import state
from kombu.asynchronous import Hub

from celery_batch.worker.dispatch.batch_job import BatchJob
from celery_batch.worker.dispatch.follow_up import BatchEnd
from celery_batch.worker.intake.request import BatchRequest
from celery_batch.worker.scheduling.scheduler import Scheduler


class Call:
    """One of Celery's requests, which records what happens to it."""

    def __init__(self, task_id: str, events: list[tuple[Any, ...]], task: str = "pairs") -> None:
        self.id = task_id
        self.name = "shop.task"
        self.request_dict = {"id": task_id, "args": (1,), "kwargs": {}}
        self.body, self.content_type, self.content_encoding = b"[]", "application/json", "utf-8"
        self.time_limits: tuple[float | None, float | None] = (None, None)
        self.delivery_info: dict[str, Any] = {}
        self.losses, self.deadline, self.limit, self.arrived = 0, None, None, None
        self.is_cancelled = self.is_undecoded = self.is_routine = False
        self.deliveries: int | None = None
        self.rows, self.work, self.cost = 1, 1.0, None
        self.batch_key: Any = None
        self.row_digest: bytes | None = None
        self.is_suspect = self.is_redelivery_suspect = self.waits_anew = False
        self.payload_key: str | None = None
        self.has_result = True
        self.correlation_id = self.reply_to = self.eventer = None
        self.app = Celery(set_as_current=False)
        self.is_done = self.has_succeeded = self.is_redelivered = self.acknowledged = False
        self.is_disowned = self.was_rejected = self.has_expired = False
        self.key = (task_id, 0)
        self.is_revoked = False
        self.events = events
        self.message: Any = None
        self._context = None
        self._on_ack = self._on_reject = lambda: self.events.append((self.id, "acknowledged"))
        #: Whether the result backend can be reached.
        self.storable = True
        self.task = SimpleNamespace(
            name=task,
            backend=SimpleNamespace(mark_as_failure=self._mark_as_failure),
            soft_time_limit=None,
            acks_late=True,
        )
        state.task_reserved(self)

    take_place_of = BatchRequest.take_place_of

    @property
    def runs_alone(self) -> bool:
        """Whether it runs in a batch of its own."""
        return self.is_suspect or self.losses > 0 or self.deadline is not None

    def revoked(self) -> bool:
        """Whether it is revoked."""
        return self.is_revoked

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """A pool process has accepted it."""
        self.events.append((self.id, "accepted", pid, time_accepted))

    @contextmanager
    def acknowledging_last(self) -> Iterator[None]:
        """Nothing to do: the handlers of this double acknowledge last."""
        yield

    def acknowledge(self) -> None:
        """Acknowledge its message."""
        self.acknowledged = True
        self._on_ack()

    def disown(self) -> None:
        """Its connection is lost."""
        self.is_disowned = True
        self._on_ack = lambda: None

    def reject(self, requeue: bool = False) -> None:  # noqa: FBT001, FBT002 (Celery's signature)
        """Its message goes back."""
        self.acknowledged = True
        self.events.append((self.id, "rejected", requeue))

    def _mark_as_failure(self, task_id: str, error: Exception, **_: Any) -> None:
        if not self.storable:
            raise ConnectionError("the backend is gone")
        self.events.append((task_id, "marked failed", str(error)))

    def on_success(self, settled: Any) -> None:
        """It has run; a late acknowledgement follows."""
        if settled == "explode":
            raise RuntimeError("the handler broke")
        self.events.append((self.id, "settled", settled))
        self.acknowledge()

    def on_failure(self, einfo: Any) -> None:
        """It has failed."""
        self.events.append((self.id, "failed", einfo))

    def on_timeout(self, soft: bool, timeout: float) -> None:  # noqa: FBT001 (Celery's signature)
        """It took too long."""
        self.events.append((self.id, "timeout", soft, timeout))


class Pool:
    """A pool that keeps what it is given until a test lets it run."""

    def __init__(self, processes: int = 1) -> None:
        self.num_processes = processes
        self.sent: list[SimpleNamespace] = []
        self.closing = False
        #: What Celery has given it, as its time limits.
        self.options: dict[str, Any] = {}

    def apply_async(self, target: Callable[..., Any], args: Any, **options: Any) -> Any:
        """Take a batch, unless closing."""
        if self.closing:
            return None
        name, deliveries, _ = args
        ids = [delivery.task_id for delivery in deliveries]
        result = type("Result", (), {"_job": len(self.sent), "_cache": {}})()
        self.sent.append(
            SimpleNamespace(
                target=target, name=name, ids=ids, deliveries=deliveries, result=result, **options
            )
        )
        return result

    def flush(self) -> None:
        """Forget what has not been accepted, as the prefork pool does."""

    def finish(self, index: int = -1) -> None:
        """Run one of the batches it was given, with success."""
        sent = self.sent[index]
        sent.callback(BatchEnd([(0, None, 0.0)] * len(sent.ids)))

    def finish_all(self) -> None:
        """Run the batches it was given, and those that it is given meanwhile."""
        for index, _ in enumerate(self.sent):  # which grows meanwhile
            self.finish(index)

    @property
    def batches(self) -> list[list[str]]:
        """The ids of each batch it was given, in order."""
        return [sent.ids for sent in self.sent]


class Worker:
    """A consumer with a pool, and a timer that only records what it is set to."""

    def __init__(self, app: Celery, pool: Any, hub: Hub | None = None) -> None:
        self.app, self.pool, self.hub = app, pool, hub
        self.controller = SimpleNamespace(prefetch_multiplier=4)
        self.connection = SimpleNamespace(transport=SimpleNamespace(driver_type="memory"))
        self.events: list[tuple[Any, ...]] = []
        self.timeouts: list[float | None] = []
        self.fire_timer: Callable[[float], None] = lambda _: None
        self.released = 0

    def on_task_request(self, job: BatchJob) -> None:
        """Hand a job to the pool, as Celery's worker does."""
        try:
            job.execute_using_pool(self.pool)
        except TaskRevokedError:
            self.released += 1

    def make_timer(self, _: Hub | None, callback: Callable[[float], None]) -> Any:
        """Make the timer."""
        self.fire_timer = callback
        return SimpleNamespace(set=self.timeouts.append, cancel=lambda: self.timeouts.append(None))

    def _refuse(self, request: Call, reason: str) -> None:
        self.events.append((request.id, "refused", reason))

    def start(self) -> Scheduler:
        """Open a scheduler on this consumer."""
        self.scheduler = Scheduler(self, self._refuse)
        self.scheduler.open()
        return self.scheduler

    def send(self, task: str, *ids: str) -> list[Call]:
        """Add requests for a task, one by one."""
        task_queue = self.scheduler.task_queue(self.app.tasks[task])
        calls = [Call(task_id, self.events, task) for task_id in ids]
        for call in calls:
            self.scheduler.add(task_queue, call)
        return calls

    def ids(self, event: str) -> list[str]:
        """Return the ids of the requests that had an event, in order."""
        return [task_id for task_id, what, *_ in self.events if what == event]

    @property
    def in_flight(self) -> int:
        """How many batches have a slot."""
        return len(self.scheduler.slots.jobs)
