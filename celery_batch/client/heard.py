"""A result whose answer is told to this process, in Celery's eyes."""

from __future__ import annotations

from typing import Any, Self

from celery import states
from celery.app import app_or_default
from celery.backends.base import BackendGetMetaError
from celery.result import AsyncResult
from vine import promise

from celery_batch.client.elsewhere import is_elsewhere, is_of_thread
from celery_batch.client.inbox import inbox_of
from celery_batch.client.opened import opened
from celery_batch.client.reply import Reply, Watcher
from celery_batch.replies import BatchFacts

__all__ = ["HeardResult"]


class HeardResult(AsyncResult):  # type: ignore[misc]
    """
    Celery's result, which takes its answer from the inbox where one is told.

    Celery's own machinery can wait for it, too: then it is told by nobody any more.

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
    #: Whether it is stored where the app's listener does not look.
    is_elsewhere = False
    #: What is known of its task, decoded, once the task has ended.
    _meta: dict[str, Any] | None = None
    #: Whether Celery's own machinery waits for it.
    _is_native = False
    #: Its callbacks that are still to be called, each with the watcher that does.
    _thens: tuple[tuple[Any, Watcher], ...] = ()

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
            self.is_elsewhere = is_elsewhere(backend, self.app)
        elif is_of_thread(usual):
            self._backend = usual
        if parent is not None:
            self.parent = parent
        #: What the inbox hears for it.
        self.reply: Reply = inbox_of(self.app).reply(id)

    @classmethod
    def of_call(cls, task_id: str, app: Any, reply: Reply) -> Self:
        """
        Return the result of a call that is about to be sent, with the app's own backend.

        Args:
            task_id: The task's id, a new one.
            app: The Celery app.
            reply: To the call.
        """
        result = cls.__new__(cls)  # past everything that is looked up, and is known here
        result.app, result.id, result.reply = app, task_id, reply
        return result

    @property
    def backend(self) -> Any:
        """The result backend; the app's in this thread unless it is another, or RPC."""
        return self._backend or self.app.backend

    @property
    def batch(self) -> BatchFacts | None:
        """How its answer was made; None as long as there is none, or if nobody has told."""
        return None if self.is_elsewhere else self.own_reply().batch

    @property
    def on_ready(self) -> Any:
        """Celery's promise, made when something asks for it."""
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
        What is known of the task, if it has ended.

        Celery's joins look here before they wait for a result in Celery's way, so
        from then on that is how it is waited for.
        """
        meta = self._open()
        if meta is None and not self._is_native:
            self._go_native()
        return meta

    @_cache.setter
    def _cache(self, meta: dict[str, Any] | None) -> None:
        self._meta = meta

    def own_reply(self) -> Reply:
        """Return its reply in this process, which may be a fork of the one that asked."""
        reply = self.reply
        if not reply.inbox.is_here:  # its lock may be held for ever
            inbox = inbox_of(self.app)
            self.reply = inbox.reply(self.id)
            self.reply.is_asked |= reply.is_asked
            if reply.value is not None:
                inbox.deliver([(self.id, reply.value)])
                self.reply.said = reply.said
        return self.reply

    @property
    def is_heard(self) -> bool:
        """Whether its reply comes to our inbox, rather than in Celery's own way."""
        return self.own_reply().is_asked and not self._is_native

    def look(self) -> Self | None:
        """Return itself if its task has ended, as far as the backend can be asked."""
        lost = getattr(self.backend, "connection_errors", ())  # not every backend knows its own
        try:
            return self if self.ready() else None
        except (*lost, BackendGetMetaError):
            return None

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
        self.let_go()
        super().forget()

    def let_go(self) -> None:
        """Forget the result here alone."""
        self.reply = Reply(self.reply.inbox, self.id)  # nobody will tell of it
        self._meta = None

    def _open(self) -> dict[str, Any] | None:
        """Decode what has been told, in the thread of whoever wants it."""
        if self._meta is None:
            value = self.reply.value
            if value:
                self._maybe_set_cache(opened(self.backend, value))
            elif value is not None:
                self._maybe_set_cache(self.backend.get_task_meta(self.id))
        return self._meta

    def _get_task_meta(self) -> Any:
        return self._open() or self._maybe_set_cache(self.backend.get_task_meta(self.id))

    def _maybe_set_cache(self, meta: Any) -> Any:
        if meta and meta["status"] in states.READY_STATES:
            meta = self._set_cache(self.backend.meta_from_decoded(meta))
            if (waiting := self.__dict__.get("_on_ready")) is not None:
                waiting(self)
        return meta

    def _go_native(self, *, weak: bool = False) -> None:
        """Be waited for in Celery's own way from now on."""
        self._is_native = True
        self._backend = self.backend  # this thread's, which will be drained
        thens, self._thens = self._thens, ()
        inbox = self.reply.inbox
        for callback, watcher in thens:
            if not inbox.is_here or inbox.leave(self.reply, watcher):
                self.on_ready.then(callback)
        self._backend.add_pending_result(self, weak=weak)

    def _on_fulfilled(self, result: Any) -> Any:
        if self._is_native:
            self._backend.remove_pending_result(self)
        return result

    def __del__(self) -> None:
        if self._is_native:
            self._backend.remove_pending_result(self)
