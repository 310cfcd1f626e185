"""
The results of a call and of a group, as the client sees them.

Where no listener receives results, it does all that Celery's own result does.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, Self

from celery import states
from celery.app import app_or_default
from celery.backends.redis import RedisBackend
from celery.result import AsyncResult, EagerResult, GroupResult, assert_will_not_block
from celery.utils.functional import noop
from kombu.exceptions import EncodeError
from vine import Thenable, barrier, promise

from celery_batch.client.results.futures import future_of, has_ended, is_rpc, require_backend
from celery_batch.client.results.listener import ResultReader, start_listener
from celery_batch.client.results.meta import decode_meta
from celery_batch.client.results.pending import (
    TOO_LARGE,
    Callback,
    PendingResult,
    PendingResults,
    SentBy,
    is_in_callback,
)
from celery_batch.client.results.states import StateIterator
from celery_batch.client.results.waiting import (
    ThreadWaiter,
    wait_until_ended,
    warn_if_loop_blocks,
)
from celery_batch.compat.backend_hooks import as_stored
from celery_batch.compat.tasks import task_meta
from celery_batch.payloads.results import forget_payload, mentions_payload, read_if_payload
from celery_batch.protocol import BatchInfo
from celery_batch.serialization.encode_errors import check_output

__all__ = [
    "BatchGroup",
    "BatchResult",
    "EagerBatchResult",
    "adopt_groups",
    "forget_many",
]

#: What coroutines do instead of `get`.
_AWAIT = "use `await result` in place of `result.get()`"

#: What `get` takes after ``timeout`` and ``propagate``.
_MORE = (
    "interval",
    "no_ack",
    "follow_parents",
    "callback",
    "on_message",
    "on_interval",
    "disable_sync_subtasks",
)


class BatchResult(AsyncResult):  # type: ignore[misc]
    """
    What a call of a batch task returns: an `AsyncResult` that can be awaited, too.

    Celery's own machinery can wait for it as well: from then on that receives it.

    Args:
        id: The task's id.
        backend: The result backend, the app's unless given.
        task_name: Unused, as in Celery.
        app: The Celery app, the current one unless given.
        parent: The result before it in a chain.
    """

    app: Any = None
    _backend: Any = None
    _ignored = False
    #: Whether it is stored where the app's listener does not receive or poll.
    is_stored_elsewhere = False
    #: The task's meta data, decoded, once the task has ended.
    _meta: dict[str, Any] | None = None
    #: Whether Celery's own machinery waits for it.
    _waits_as_celery_does = False
    #: Callbacks of `then` that are still to be called, each with the function that does.
    _thens: tuple[tuple[Any, Callback], ...] = ()

    def __init__(
        self,
        id: str,  # noqa: A002 (Celery's name for it)
        backend: Any = None,
        task_name: str | None = None,  # noqa: ARG002 (Celery's place for it)
        app: Any = None,
        parent: Any = None,
    ) -> None:
        if id is None:
            raise ValueError("a result needs the id of its task")
        self.app = app_or_default(app or self.app)
        self.id = id
        usual = self.app.backend
        if backend is not None and backend is not usual:
            self._backend = backend
            self.is_stored_elsewhere = _is_elsewhere(backend, usual)
        elif is_rpc(usual):
            self._backend = usual
        if parent is not None:
            self.parent = parent
        self._pending: PendingResult = PendingResults.of(self.app).get(id)

    @classmethod
    def of_call(cls, task_id: str, app: Any, pending: PendingResult) -> Self:
        """Return the result of a call that is about to be sent, with the app's own backend."""
        result = cls.__new__(cls)  # `__init__` looks up what is known here
        result.app, result.id = app, task_id
        result._pending = pending  # noqa: SLF001 (our own, past the property)
        return result

    @property
    def pending_result(self) -> PendingResult:
        """What this process, which may be a fork of the one that sent the task, knows of it."""
        pending = self._pending
        if pending.registry.is_of_parent:  # its lock may be held for ever
            registry = PendingResults.of(self.app)
            self._pending = registry.get(self.id)
            if pending.sent_by is not None and self._pending.sent_by is None:
                self._pending.sent_by = SentBy.PARENT
            if pending.value is not None:
                registry.deliver([(self.id, pending.value)])
                self._pending.facts = pending.facts
        return self._pending

    @pending_result.setter
    def pending_result(self, pending: PendingResult) -> None:
        self._pending = pending

    @property
    def backend(self) -> Any:
        """The result backend; the app's in this thread unless it is another, or RPC."""
        return self._backend or self.app.backend

    @property
    def batch_info(self) -> BatchInfo | None:
        """How the result was made; None until it is there, or if no notification came."""
        return None if self.is_stored_elsewhere else self.pending_result.batch_info

    @property
    def on_ready(self) -> Any:
        """Celery's promise, made when it is needed."""
        ours = self.__dict__
        found = ours.get("_on_ready")
        if found is None:
            found = ours.setdefault("_on_ready", promise(self._on_fulfilled, weak=True))
            if self._meta is not None and not found.ready:
                found(self)
        return found

    @property
    def _cache(self) -> dict[str, Any] | None:
        """
        The task's meta data, if it has ended; else Celery is told of the end from now on.

        Celery's joins read it just before they wait by themselves, and have no other hook.
        """
        meta = self._open()
        if meta is None and not self._waits_as_celery_does:
            self._go_native()
        return meta

    @_cache.setter
    def _cache(self, meta: dict[str, Any] | None) -> None:
        self._meta = meta

    @property
    def notified(self) -> PendingResult | None:
        """What the app's listener notifies of its end; None where its backend has to be polled."""
        if self.is_stored_elsewhere or start_listener(self.app) is None:
            return None
        return self.pending_result

    @property
    def is_received(self) -> bool:
        """Whether the app's listener receives it, rather than Celery's own machinery."""
        return self.pending_result.sent_by is not None and not self._waits_as_celery_does

    def maybe_throw(self, propagate: bool = True, callback: Any = None) -> Any:  # noqa: FBT001, FBT002
        """
        Return the result, or raise what the task has failed with; see Celery.

        Args:
            propagate: False to return an error as well.
            callback: Called with the id and the result.
        """
        meta = self._get_task_meta()
        value = meta["result"]
        if propagate and meta["status"] in states.PROPAGATE_STATES:
            self.throw(value, self._to_remote_traceback(meta.get("traceback")))
        if callback is not None:
            callback(self.id, value)
        return value

    maybe_reraise = maybe_throw

    def forget(self) -> None:
        """Forget the result, here and where it is stored; see Celery."""
        self.forget_payload()
        self._forget_here()
        if self.parent:
            self.parent.forget()
        self.backend.remove_pending_result(self)
        with as_stored():  # its payload is deleted; a parent may be Celery's own result
            self.backend.forget(self.id)

    def forget_payload(self) -> None:
        """Delete what is stored beside the result, if anything is."""
        value = self._pending.value
        if not value and isinstance(self.backend, RedisBackend):  # or it was too large to be sent
            value = read_if_payload(self.backend, self.id)
        if value and mentions_payload(value):
            forget_payload(self.backend, self.backend.decode(value))

    @property
    def has_payload(self) -> bool:
        """Whether it is received, and what is stored beside it is still to be read."""
        value = self._pending.value
        return self._meta is None and value is not None and mentions_payload(value)

    def read_soon(self) -> asyncio.Future[Any]:
        """Read what is stored beside it in a thread; the running loop's future ends then."""
        return asyncio.get_running_loop().run_in_executor(None, self._open)

    def _forget_here(self) -> None:
        self._pending = PendingResult(self._pending.registry, self.id)  # which receives nothing
        self._meta = None

    def _open(self) -> dict[str, Any] | None:
        """Decode what was received, in the thread that wants it."""
        if self._meta is None:
            value = self._pending.value
            if value == TOO_LARGE:
                self._maybe_set_cache(self.backend.get_task_meta(self.id))
            elif value is not None:
                self._maybe_set_cache(decode_meta(self.backend, value))
        return self._meta

    def _get_task_meta(self) -> Any:
        if (meta := self._open()) is None:
            require_backend(self)
            meta = self._maybe_set_cache(self.backend.get_task_meta(self.id))
        return meta

    def _maybe_set_cache(self, meta: Any) -> Any:
        if meta and meta["status"] in states.READY_STATES:
            meta = self._set_cache(self.backend.meta_from_decoded(meta))
            if (waiting := self.__dict__.get("_on_ready")) is not None:
                waiting(self)
        return meta

    def _go_native(self, *, weak: bool = False) -> None:
        """Be waited for in Celery's own way from now on."""
        self._waits_as_celery_does = True
        self._backend = self.backend  # this thread's, which will be drained
        thens, self._thens = self._thens, ()
        pending, registry = self._pending, self._pending.registry
        for then, callback in thens:
            if registry.is_of_parent or registry.remove_callback(pending, callback):
                self.on_ready.then(then)
        self._backend.add_pending_result(self, weak=weak)

    def _on_fulfilled(self, result: Any) -> Any:
        if self._waits_as_celery_does:
            self._backend.remove_pending_result(self)
        return result

    def __del__(self) -> None:
        if self._waits_as_celery_does:
            self._backend.remove_pending_result(self)

    def get(
        self,
        timeout: float | None = None,
        propagate: bool = True,  # noqa: FBT001, FBT002 (Celery's signature)
        *more: Any,
        **options: Any,
    ) -> Any:
        """
        Wait until the task has ended, and return its result; see Celery's `AsyncResult.get`.

        Args:
            timeout: Most seconds to wait; None for as long as it takes.
            propagate: Raise what the task has failed with, else return it.
            more: Celery's other parameters, in their order.
            options: The same by name.

        Returns:
            The task's result; None if results are ignored.

        Raises:
            TimeoutError: Celery's; the task has not ended by then.
            Exception: Whatever the task, or one before it in a chain, has failed with.
        """
        options.update(zip(_MORE, more, strict=False))
        if self._ignored:
            return None
        if options.get("on_message") or not self.is_received or is_in_callback():
            require_backend(self)
            if self._meta is None and timeout != 0:
                warn_if_loop_blocks(_AWAIT)
            return super().get(timeout, propagate, **options)
        if options.get("disable_sync_subtasks", True):
            assert_will_not_block()
        watch_parents = self.parent and propagate and options.get("follow_parents", True)
        if watch_parents:
            self._maybe_reraise_parent_error()
        callback = options.get("callback")
        if self._open() is not None:
            return self.maybe_throw(callback=callback) if propagate else self.result
        require_backend(self)
        if timeout != 0:
            warn_if_loop_blocks(_AWAIT)
        meanwhile = partial(self._meanwhile, watch_parents, options.get("on_interval"))
        waiter = ThreadWaiter(self.app, timeout, meanwhile)
        if not (self._pending.registry.is_stale(self._pending) and has_ended(self)):
            next(waiter.arrivals((self,)))
        if self._open() is None:  # what was received is no end, or was deleted since
            return super().get(waiter.left, propagate, **options)
        return self.maybe_throw(callback=callback, propagate=propagate)

    wait = get

    def __await__(self) -> Generator[Any, None, Any]:
        """
        Wait in the running event loop; to cancel that leaves the task alone.

        Raises:
            Exception: Whatever the task, or one before it in a chain, has failed with.
        """
        if self._ignored:
            return None
        assert_will_not_block()
        if not self.has_payload and self._open() is None:
            yield from wait_until_ended(self).__await__()
        if self.has_payload:
            yield from self.read_soon()
        return self.maybe_throw()

    def future(self) -> Future[Any]:
        """
        Return a future of the result, done when the task has ended.

        To cancel it gives up waiting and leaves the task alone; see `revoke`.
        """
        return future_of(self)

    def iter_states(self, timeout: float | None = None) -> StateIterator:
        """
        Return an iterator, and asynchronous iterator, of the task's states as they come.

        Each is yielded once if it is stored long enough to be found: ``STARTED`` if that is
        tracked, ``RETRY``, custom states, and last the one in which the task has ended.  The
        task may be another process'.  The iterator ends early when the result is forgotten or
        has expired.

        Args:
            timeout: Most seconds to wait for each; then Celery's `TimeoutError` is raised,
                and the next may be waited for.  None for as long as it takes.

        Returns:
            The states, for ``for`` and ``async for``.
        """
        return StateIterator(self, timeout)

    def then(self, callback: Any, on_error: Any = None, weak: bool = False) -> Any:  # noqa: FBT001, FBT002
        """
        Have a function called with this result when the task has ended; see Celery.

        Args:
            callback: Called in the thread that receives all results, so it should be short.
            on_error: Called if the callback fails.
            weak: Forget the callback with the last reference to this result.

        Returns:
            A promise of the callback.
        """
        if not self.is_received or self.notified is None:
            self._go_native(weak=weak)
            return self.on_ready.then(callback, on_error)
        if not isinstance(callback, Thenable):
            callback = promise(callback, on_error=on_error)
        pending, registry = self._pending, self._pending.registry
        call: Callback
        add = registry.add_passive_callback
        if isinstance(callback, barrier):
            call = partial(registry.barriers.count, callback)
        elif weak:
            call = partial(_call, weakref.ref(self), callback)
        else:
            call, add = partial(callback, self), registry.add_callback
        if add(pending, call):
            self._thens = (*self._thens, (callback, call))
        else:
            call()
        return callback

    def _meanwhile(self, watch_parents: object, on_interval: Callable[[], object] | None) -> None:
        if watch_parents:
            self._maybe_reraise_parent_error()
        if on_interval is not None:
            on_interval()


def _is_elsewhere(backend: Any, usual: Any) -> bool:
    """Return whether a backend is another place than the app's own, which the listener polls."""
    return type(backend) is not type(usual) or _place(backend) != _place(usual)


def _place(backend: Any) -> tuple[Any, Any]:
    url = backend.as_uri(include_password=True)  # without, two databases look the same
    return url, getattr(backend, "connparams", None)


def _call(result: weakref.ref[BatchResult], callback: Any) -> None:
    if (found := result()) is not None:
        callback(found)


class EagerBatchResult(EagerResult):  # type: ignore[misc]
    """Celery's, with what a `BatchResult` has besides."""

    #: It was made alone, and here.
    batch_info: BatchInfo | None = None

    @classmethod
    def checked(cls, task: Any, result: Any, options: dict[str, Any]) -> Any:
        """Return an eager result that can be awaited; a failure if no worker could store it."""
        if type(result) is EagerResult:
            result.__class__ = cls
        ignored = options.get("ignore_result", task.ignore_result)
        if not isinstance(result, EagerResult) or result.state != states.SUCCESS or ignored:
            return result
        try:
            check_output(task.backend, task.name, result.result)
        except EncodeError as error:
            throw = options.get("throw")
            if task.app.conf.task_eager_propagates if throw is None else throw:
                raise
            return cls(result.id, error, states.FAILURE, name=result.name)
        return result

    def __await__(self) -> Generator[Any, None, Any]:
        """Return the result, or raise what the task has failed with."""
        yield from ()
        return self.get()

    def iter_states(self, timeout: float | None = None) -> StateIterator:
        """Return an iterator, and asynchronous iterator, of the one state that it has."""
        return StateIterator(self, timeout)

    def future(self) -> Future[Any]:
        """Return a future that is done."""
        return future_of(self)


class BatchGroup(GroupResult):  # type: ignore[misc]
    """Celery's result of a group, whose members the app's listener receives where it can."""

    def iter_native(
        self,
        timeout: float | None = None,
        interval: float = 0.5,
        no_ack: bool = True,  # noqa: FBT001, FBT002 (Celery's signature)
        on_message: Any = None,
        on_interval: Any = None,
    ) -> Iterator[tuple[str, Any]]:
        """Return the members' ids and meta data as they come; see Celery."""
        members = self.results
        is_received = members and all(
            isinstance(each, BatchResult) and each.is_received for each in members
        )
        if on_message or not is_received:
            return super().iter_native(  # type: ignore[no-any-return]
                timeout, interval, no_ack, on_message, on_interval
            )
        self._on_full.finalize()
        warn_if_loop_blocks("use `async for result in as_completed(group.results)`")
        arrivals = ThreadWaiter(self.app, timeout, on_interval or noop).arrivals(members)
        return ((member.id, task_meta(member)) for member in arrivals)


def adopt_groups(app: Any) -> None:
    """Have the app's groups be `BatchGroup` objects, unless it has a class of its own."""
    if app.GroupResult.__bases__ == (GroupResult,):
        app.GroupResult = app.subclass_with_self(BatchGroup, reverse="GroupResult")


def forget_many(results: Iterable[Any]) -> None:
    """Forget results, many at once where Celery stores them in Redis; at last raise what failed."""
    keys: dict[Any, list[Any]] = {}
    failure: Exception | None = None
    for result in results:
        try:
            backend = result.backend
            if _is_ours_alone(result, backend):
                result.forget_payload()
                keys.setdefault(backend, []).append(backend.get_key_for_task(result.id))
                result._forget_here()  # noqa: SLF001 (our own)
            else:
                result.forget()
        except Exception as error:  # noqa: BLE001 (the next one may be forgotten)
            failure = failure or error
    for backend, some in keys.items():
        backend.client.delete(*some)
    if failure is not None:
        raise failure


def _is_ours_alone(result: Any, backend: Any) -> bool:
    """Return whether Celery knows nothing of a result but what is stored."""
    return (
        isinstance(result, BatchResult)
        and ResultReader.supports(backend)
        and not backend.always_retry  # which is Celery's to do
        and not result.parent
        and result.is_received
        and bool(result.pending_result.value)  # else it was polled in Celery's way
    )
