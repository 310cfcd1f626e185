"""Celery's request, for tasks whose requests share a pool job."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Any

from celery.concurrency.base import BasePool
from celery.states import READY_STATES
from celery.utils.functional import noop
from celery.worker import state
from celery.worker.request import Request

from celery_batch.batching.policy import BatchPolicy
from celery_batch.compat.backend_hooks import as_stored
from celery_batch.compat.billiard import signalled_processes
from celery_batch.compat.older_celery import success_was_stored
from celery_batch.errors import BatchError
from celery_batch.items.functions import ItemKey, is_interrupt, warn_of_array
from celery_batch.payloads.release import PayloadRelease
from celery_batch.payloads.values import PayloadReference
from celery_batch.protocol import LOSSES, PAYLOADS, ROWS
from celery_batch.runtime.item_cost import ItemCost
from celery_batch.serialization.decoding import Undecoded, decode_arguments
from celery_batch.serialization.row_digest import RowDigest
from celery_batch.worker.intake.message_format import are_limits

__all__ = ["BatchRequest", "wants_events"]

logger = logging.getLogger(__name__)


def wants_events(eventer: Any, task: Any) -> bool:
    """Return whether the events of a task's requests are sent."""
    if not eventer or not eventer.enabled or not task.send_events:
        return False
    return not eventer.groups or "task" in eventer.groups


#: Bytes of the largest body that is decoded in the main process for its cost, key or digest.
_LARGEST_COUNTED = 1 << 20

#: Seconds.  A message cannot have a shorter limit: every batch would exceed it, at the price of
#: two pool processes, each with a model to load.
_SHORTEST_LIMIT = 0.1


class BatchRequest(Request):  # type: ignore[misc]
    """A request whose end does not affect the other requests of its batch."""

    #: How often a process died while it ran this request, here or elsewhere.
    losses = 0

    #: Whether it may be the reason why the batch that had it before has ended.
    is_suspect = False

    #: Whether it, or another that came back with it, may be why their worker has ended.
    is_redelivery_suspect = False

    #: How many rows it has: many if it is a chunk.
    rows = 1

    #: What its longest row costs, or all rows where nothing is padded; None until it is computed.
    cost: float | None = None

    #: The same for requests with equal arguments; None if it equals no other, or is a chunk.
    row_digest: bytes | None = None

    #: How much of a batch it takes, in rows or in cost.
    work: float = 1

    #: Only requests with equal keys share a batch; None until it is computed.
    batch_key: Hashable = None

    #: When it first joined its task queue, on the monotonic clock.
    arrived: float | None = None

    #: Whether it waits behind those that came after it: what is stored beside its message was
    #: not to be had when its turn came.
    waits_anew = False

    #: When the time ends that its batch's time limit left it, on the monotonic clock.
    deadline: float | None = None

    #: The limit, in seconds, that the deadline comes from.
    limit: float | None = None

    #: Whether the connection of its message is lost, so that it acknowledges nothing.
    is_disowned = False

    #: Whether its message was rejected, and may be meant to come again.
    was_rejected = False

    #: The key of what is stored beside its message; None if nothing is, or it is to be kept.
    payload_key: str | None = None

    #: Called before its message is acknowledged or rejected, with a function that does so.
    before_end: Callable[[Callable[[], None]], object] | None = None

    #: The acknowledgement that waits until a handler has ended.
    _deferred: Callable[[], None] | None = None
    _is_deferring = False

    #: Whether its body is left to the pool process to decode and to check.
    is_undecoded = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if type(self._message.payload) is Undecoded:
            self.is_undecoded = True  # else it keeps no attribute of its own, while it waits
        counted = self._request_dict.get(LOSSES)
        if isinstance(counted, int) and counted > 0:  # from the wire: anything may be there
            self.losses = counted
        limits = self._request_dict.get("timelimit")
        if limits and limits != [None, None] and are_limits(limits):
            self.time_limits = tuple(each and max(each, _SHORTEST_LIMIT) for each in limits)
        rows = self._request_dict.get(ROWS)
        if isinstance(rows, int) and rows > 0:
            self.rows = self.work = rows
        payload = self._request_dict.get(PAYLOADS)
        if payload is not None:
            self.payload_key = PayloadReference.from_header(payload).key(self.id)
            PayloadRelease.of(self._app).hold(self)

    @contextmanager
    def acknowledging_last(self) -> Iterator[None]:
        """Let a handler acknowledge or reject only when it has ended without an error."""
        # Celery's acknowledges a failure before it stores it: the backend may be away.
        self._is_deferring = True
        try:
            yield
        finally:
            self._is_deferring = False
            deferred, self._deferred = self._deferred, None
        if deferred is not None:
            self._settle(deferred)

    def acknowledge(self) -> None:
        """As Celery's; deferred within `acknowledging_last`."""
        self._settle(super().acknowledge if self.payload_key is None else self._acknowledge)

    def _acknowledge(self) -> None:
        super().acknowledge()
        if self._task.acks_late or self.is_done:
            self.release_payload()

    def release_payload(self) -> None:
        """Have what is stored beside its message deleted: the request has ended."""
        if self.payload_key is not None and not (self.is_disowned or self.was_rejected):
            PayloadRelease.of(self._app).release(self)

    def _announce_revoked(self, *args: Any, **options: Any) -> None:
        """As Celery's; one that was acknowledged early ends here, too."""
        super()._announce_revoked(*args, **options)
        self.release_payload()

    def reject(self, requeue: bool = False) -> None:  # noqa: FBT001, FBT002 (Celery's signature)
        """As Celery's; deferred within `acknowledging_last`."""
        self._settle(partial(self._reject, requeue=requeue))

    def _reject(self, *, requeue: bool) -> None:
        super().reject(requeue=requeue)
        self.was_rejected = True

    def _settle(self, settle: Callable[[], None]) -> None:
        """Acknowledge or reject the message, as soon as that is allowed."""
        before = self.before_end
        if self._is_deferring:
            self._deferred = settle
        elif before is not None:
            self.before_end = None
            before(settle)
        else:
            settle()

    @cached_property
    def _payload(self) -> Any:
        """Its decoded body, for an end that is announced here, and the callbacks embedded in it."""
        payload = super()._payload
        if not self.is_undecoded:
            return payload
        found = decode_arguments(self._message)
        self._request_dict["args"], self._request_dict["kwargs"], _ = found
        return found

    @property
    def args(self) -> Any:
        """As Celery's; a large body is decoded first."""
        return self._payload[0] if self.is_undecoded else self._args

    @property
    def kwargs(self) -> Any:
        """As Celery's; a large body is decoded first."""
        return self._payload[1] if self.is_undecoded else self._kwargs

    def measure(
        self, policy: BatchPolicy, item_cost: ItemCost | None, item_key: ItemKey | None
    ) -> None:
        """Compute its cost and its key, unless they are known."""
        # One without a cost counts as nothing, one without a key shares no batch: both fail where
        # the model would run.  No row counts for more than a whole batch.
        is_usual = not (
            self.is_undecoded
            or self._request_dict.get(ROWS)
            or len(self._message.body or b"") > _LARGEST_COUNTED
        )
        if item_cost is not None and self.cost is None:
            most = policy.max_batch_cost
            if is_usual and most is not None:
                cost = self._own_cost(item_cost, self._args, self._kwargs, most)
                self.cost = self.work = most if cost > most else cost  # noqa: FURB136 (half the time)
            else:
                self._compute_cost(item_cost, policy)
        if item_key is not None and self.batch_key is None:
            try:
                self.batch_key = (
                    item_key.of_call(self._args, self._kwargs)
                    if is_usual
                    else self._rare_key(item_key)
                )
            except BaseException as error:  # whatever a key does that a user has written
                if is_interrupt(error):
                    raise
                self.batch_key = object()
                self._warn_of_array("batch_by", error)

    @property
    def _is_large(self) -> bool:
        """Whether its body is too large to be decoded here."""
        return len(self._message.body or b"") > _LARGEST_COUNTED

    def _own_cost(self, item_cost: ItemCost, args: Any, kwargs: Any, most: float) -> float:
        try:
            return item_cost.of_call(args, kwargs)
        except (BatchError, TypeError, ValueError) as error:
            self._warn_of_array("cost", error)
            return 0.0 if self.payload_key is None else most  # it needs what is stored beside

    def _warn_of_array(self, option: str, error: BaseException) -> None:
        if not self.is_undecoded:
            values = [*self._args, *self._kwargs.values()]
            warn_of_array(f"{self._task.name}.{option}", error, values)

    def _compute_cost(self, item_cost: ItemCost, policy: BatchPolicy) -> None:
        """Compute the cost of a chunk, or of a request with a large body."""
        most = policy.max_batch_work
        if self._is_large:
            self.cost = most / (self.rows if policy.padded else 1)
        elif self._request_dict.get(ROWS):
            costs = [min(cost, most) for cost in self._costs_of_rows(item_cost)]
            self.cost = max(costs, default=0.0) if policy.padded else sum(costs)
        else:
            self.cost = min(self._own_cost(item_cost, self.args, self.kwargs, most), most)
        self.work = policy.work_of(self.rows, self.cost)

    def _costs_of_rows(self, item_cost: ItemCost) -> list[float]:
        """Return the costs of the rows of a chunk that have one."""
        try:
            chunk = self._task._chunk_of(self.args, self.kwargs, self.rows)
        except (BatchError, TypeError, ValueError):
            return []
        return [cost for cost in item_cost.of_rows(chunk.columns) if isinstance(cost, float)]

    def take_place_of(self, former: BatchRequest) -> None:
        """Take over what is known of the same request, whose message was delivered before."""
        self.arrived, self.cost, self.work = former.arrived, former.cost, former.work
        self.batch_key, self.row_digest = former.batch_key, former.row_digest

    def compute_digest(self, row_digest: RowDigest) -> None:
        """Compute the digest of its arguments, unless it is a chunk or too large to decode here."""
        if self._request_dict.get(ROWS) or self._is_large:
            return
        with suppress(TypeError):  # the arguments do not fit, and it fails where the model runs
            self.row_digest = row_digest.of_call(
                self._task._batch_signature, self.args, self.kwargs
            )

    def _rare_key(self, item_key: ItemKey) -> Hashable:
        """Return the key of a chunk, or of a request with a large body."""
        if self._is_large:
            return object()  # which is equal to no other
        if not self._request_dict.get(ROWS):
            return item_key.of_call(self.args, self.kwargs)
        chunk = self._task._chunk_of(self.args, self.kwargs, self.rows)
        return item_key.of_rows(chunk.columns)

    def info(self, safe: bool = False) -> Any:  # noqa: FBT001, FBT002 (Celery's signature)
        """As Celery's, which shows the arguments; of a large body only their reprs."""
        return super().info(safe=safe or self.is_undecoded)

    def given_back(self) -> None:
        """Record that its message has been returned to the broker by other means."""
        self.acknowledged = self.was_rejected = True
        self.send_event("task-rejected", requeue=True)

    def on_failure(self, exc_info: Any, *args: Any, return_ok: bool = False, **options: Any) -> Any:
        """As Celery's, except that a cold shutdown loses no request."""
        is_final = return_ok or self.acknowledged or not self._task.acks_late
        if state.should_terminate and not is_final:
            # Celery would acknowledge it now and store nothing.  This way it goes back.
            state.task_ready(self)
            return None
        return super().on_failure(exc_info, *args, return_ok=return_ok, **options)

    @property
    def is_routine(self) -> bool:
        """Whether its start and its success only change Celery's own records."""
        cls = type(self)
        return (
            self._task.acks_late
            and cls.on_accepted is Request.on_accepted
            and cls.acknowledge is BatchRequest.acknowledge
            and self._terminate_on_ack is None
            and not wants_events(self._eventer, self._task)
        )

    @property
    def runs_alone(self) -> bool:
        """Whether it runs in a batch of its own."""
        return self.is_suspect or self.losses > 0 or self.deadline is not None

    def disown(self) -> None:
        """Acknowledge nothing any more: the connection of the message is lost."""
        self.is_disowned = True
        self._on_ack = self._on_reject = noop

    @property
    def has_expired(self) -> bool:
        """Whether it has expired; its end may still have to be announced."""
        until = self.expires
        return until is not None and datetime.now(UTC if until.tzinfo else None) > until

    @property
    def is_redelivered(self) -> bool:
        """Whether its message was delivered before."""
        return bool((self.delivery_info or {}).get("redelivered"))

    @property
    def deliveries(self) -> int | None:
        """How often its message came back, where the broker counts that (quorum queues)."""
        # From RabbitMQ 4.3 on without orderly returns, which another header counts as well.
        headers = self._request_dict
        count = headers.get("x-delivery-count", 0 if "x-acquired-count" in headers else None)
        return count if isinstance(count, int) else None

    @property
    def is_done(self) -> bool:
        """Whether its end has been announced already: it was revoked while it ran."""
        return bool(self._already_revoked)

    @property
    def is_cancelled(self) -> bool:
        """Whether Celery has stopped it, for its message to be delivered again."""
        return bool(self._already_cancelled)

    @property
    def has_succeeded(self) -> bool:
        """Whether its success was stored, whatever happened to the process afterwards."""
        return self._look_up(partial(success_was_stored, self))

    @property
    def has_result(self) -> bool:
        """Whether its caller finds a result, as far as the result backend can tell."""
        backend = self.task.backend
        if self.ignore_result or backend.as_uri().startswith(("rpc", "disabled")):
            return True
        read = partial(backend.get_task_meta, self.id, cache=False)
        return self._look_up(lambda: read()["status"] in READY_STATES)

    def _look_up(self, is_stored: Callable[[], Any]) -> bool:
        try:
            with as_stored():
                return bool(is_stored())
        except Exception as error:  # noqa: BLE001 (if it is unknown, the request runs again)
            logger.warning("Could not look up %s[%s]: %s", self.name, self.id, error)
            return False

    @property
    def key(self) -> tuple[str, int]:
        """What distinguishes this try of the task from its other tries."""
        retries = self._request_dict.get("retries")
        return self.id, retries if isinstance(retries, int) else 0

    def cancel(self, pool: Any, *args: Any, **options: Any) -> None:
        """Stop this request, for its message to be delivered again; on a thread it runs on."""
        if getattr(pool.terminate_job, "__func__", None) is not BasePool.terminate_job:
            super().cancel(_OncePerProcess(pool), *args, **options)

    def terminate(self, pool: Any, signal: Any = None) -> None:  # noqa: ARG002 (Celery's signature)
        """Revoke this request at once; its process, which Celery would kill, runs others, too."""
        if not self._already_revoked:
            self._announce_revoked("terminated", True, signal, False)  # noqa: FBT003 (Celery's signature)


class _OncePerProcess:
    """A pool that signals each process once, although each request of its batch asks for it."""

    # A second signal kills a process at once, perhaps with a lock that it shares with the pool.

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def terminate_job(self, pid: int, signal: Any = None) -> None:
        if pid not in signalled_processes(self._pool):
            self._pool.terminate_job(pid, signal)
