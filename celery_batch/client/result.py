"""
The result of a batch task: Celery's, but its answer is told to this process.

Where nobody tells us, it is Celery's own result in all that it does.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator
from concurrent.futures import Future
from functools import partial
from typing import Any

from celery.result import assert_will_not_block
from vine import Thenable, barrier, promise

from celery_batch.client.arrival import arrived
from celery_batch.client.callbacks import is_delivering
from celery_batch.client.futures import future_of
from celery_batch.client.heard import HeardResult
from celery_batch.client.listener import is_listening, listener_for
from celery_batch.client.patience import Patience
from celery_batch.client.reply import Watcher
from celery_batch.client.states import States

__all__ = ["BatchResult"]

#: What `get` takes after ``timeout`` and ``propagate``.
_MORE = (
    *("interval", "no_ack", "follow_parents", "callback"),
    *("on_message", "on_interval", "disable_sync_subtasks"),
)


class BatchResult(HeardResult):
    """
    What a call of a batch task returns: an `AsyncResult` that can be awaited, too.

    Args:
        id: The task's id.
        backend: The result backend, the app's unless given.
        task_name: Unused, as in Celery.
        app: The Celery app, the current one unless given.
        parent: The result before it in a chain.
    """

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

        Raises:
            TimeoutError: Celery's; the task has not ended by then.
            Exception: Whatever the task, or one before it in a chain, has failed with.
        """
        options.update(zip(_MORE, more, strict=False))
        if self._ignored:
            return None
        if options.get("on_message") or not self.is_heard or is_delivering():
            return super().get(timeout, propagate, **options)
        if options.get("disable_sync_subtasks", True):
            assert_will_not_block()
        watch_parents = self.parent and propagate and options.get("follow_parents", True)
        if watch_parents:
            self._maybe_reraise_parent_error()
        callback = options.get("callback")
        if self._open() is not None:
            return self.maybe_throw(callback=callback) if propagate else self.result
        meanwhile = partial(self._meanwhile, watch_parents, options.get("on_interval"))
        patience = Patience(self.app, timeout, meanwhile)
        self._wait(patience)
        if self._open() is None:  # told of something that is no end, or has gone since
            return super().get(patience.left, propagate, **options)
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
        if self._open() is None:
            yield from arrived(self).__await__()
        return self.maybe_throw()

    def future(self) -> Future[Any]:
        """
        Return a future of the result, done when the task has ended.

        To cancel it gives up waiting and leaves the task alone; see `revoke`.
        """
        return future_of(self)

    def states(self, timeout: float | None = None) -> States:
        """
        Return an iterator, and asynchronous iterator, of the task's states as they come.

        Each is yielded once, as long as it is stored: ``STARTED`` if that is tracked,
        ``RETRY``, one's own, and last the one in which the task has ended.  Whoever has
        sent the task, it may be followed from here.  It ends early when the result is
        forgotten, or has expired.

        Args:
            timeout: Most seconds to wait for each; then Celery's `TimeoutError` is raised,
                and the next may be waited for.  None for as long as it takes.
        """
        return States(self, timeout)

    def then(self, callback: Any, on_error: Any = None, weak: bool = False) -> Any:  # noqa: FBT001, FBT002
        """
        Have a function called with this result when the task has ended; see Celery.

        Args:
            callback: Called in a thread that others wait for, so briefly.
            on_error: Called if the callback fails.
            weak: Forget the callback with the last reference to this result.
        """
        if not (self.is_heard and _hears(self.app)):
            self._go_native(weak=weak)
            return self.on_ready.then(callback, on_error)
        if not isinstance(callback, Thenable):
            callback = promise(callback, on_error=on_error)
        reply, inbox = self.reply, self.reply.inbox
        watcher: Watcher
        if isinstance(callback, barrier):
            watcher, hook = partial(inbox.barriers.count, callback), inbox.listen
        elif weak:
            watcher, hook = partial(_call, weakref.ref(self), callback), inbox.listen
        else:
            watcher, hook = partial(callback, self), inbox.watch
        if hook(reply, watcher):
            self._thens = (*self._thens, (callback, watcher))
        else:
            watcher()
        return callback

    def _wait(self, patience: Patience) -> None:
        reply = self.reply
        inbox = reply.inbox
        if inbox.is_stale(reply) and self.look():
            return
        watcher = partial(patience.ring, self)
        if inbox.watch(reply, watcher):
            try:
                patience.wait(self.look)
            finally:
                inbox.leave(reply, watcher)

    def _meanwhile(self, watch_parents: object, on_interval: Callable[[], object] | None) -> None:
        if watch_parents:
            self._maybe_reraise_parent_error()
        if on_interval is not None:
            on_interval()


def _hears(app: Any) -> bool:
    """Return whether replies are heard in this process; in a fork that is still to begin."""
    return is_listening(app) or listener_for(app) is not None


def _call(result: weakref.ref[BatchResult], callback: Any) -> None:
    if (found := result()) is not None:
        callback(found)
