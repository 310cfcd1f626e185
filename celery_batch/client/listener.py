"""
Hears of this process' results: one connection and one channel for all of them.

A worker tells the channel of each batch that has ended; who asked finds the name
in `Listener.channel` and puts it into its messages.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Iterable
from functools import partial
from importlib import import_module
from typing import Any
from uuid import uuid4

from celery._state import task_join_will_block

from celery_batch.client.inbox import inbox_of
from celery_batch.client.reply import Reply
from celery_batch.client.store import FORBIDDEN, PATIENCE, ResultStore, Subscription
from celery_batch.client.sweep import Sweeper
from celery_batch.replies import FACTS_ID, REPLY_CHANNEL, read_replies

__all__ = ["Listener", "close_listener", "is_cut_off", "is_listening", "listener_for"]

logger = logging.getLogger(__name__)

#: Seconds to the first try after a loss.
_SOONEST = 0.05


class Listener:
    """
    One app's ear in this process.

    Args:
        app: The Celery app.
        store: Where its results are stored.
    """

    def __init__(self, app: Any, store: ResultStore) -> None:
        #: The name of our channel.
        self.channel = f"{store.prefix}{REPLY_CHANNEL}{uuid4()}"
        #: Whether Redis does not let us listen.
        self.is_forbidden = False
        self._inbox = inbox_of(app)
        self._store = store
        self._decided = threading.Event()
        #: Whether the subscription was confirmed once.
        self.is_confirmed = False
        self._is_open = True
        self._subscription: Subscription | None = None
        self._sweeper = Sweeper(self._inbox, store, self.check)
        self._guard = threading.Lock()
        self._threads: dict[str, threading.Thread] = {}
        self._inbox.opened(self._sweeper.hurry)
        #: Whether its threads could be started; none can while the interpreter ends.
        self.is_started = self.check()
        if not self.is_started:
            self.close()

    @property
    def has_tried(self) -> bool:
        """Whether the first try to subscribe has ended."""
        return self._decided.is_set()

    def wait(self, timeout: float) -> bool:
        """
        Return whether the subscription was confirmed once, waiting for the first try to end.

        Args:
            timeout: Most seconds to wait.
        """
        if not self.is_confirmed:
            self._decided.wait(timeout)
        return self.is_confirmed

    def reply_to(self, task_id: str) -> Reply:
        """Get ready for the reply to a new message, before it is written, and return it."""
        return self._inbox.expect_new(task_id)

    def expect(self, result: Any) -> None:
        """
        Get ready for one reply, before the message that asks for it is written.

        Args:
            result: A `BatchResult`; nothing is kept of it once nobody holds it.
        """
        self.expect_many((result,))

    def expect_many(self, results: Iterable[Any]) -> None:
        """
        Get ready for replies, before the messages that ask for them are written.

        Args:
            results: `BatchResult` objects.
        """
        results = list(results)
        replies = self._inbox.expect([result.reply for result in results])
        for result, reply in zip(results, replies, strict=True):
            result.reply = reply

    def check(self) -> bool:
        """
        Begin again what should run and does not: nobody may wait for a thread that died.

        Returns:
            False if a thread could not be started.
        """
        if not self._guard.acquire(blocking=False):
            return True  # somebody does, perhaps this very thread
        try:
            return all([self._check_one("replies"), self._check_one("sweep")])
        finally:
            self._guard.release()

    def _check_one(self, name: str) -> bool:
        thread = self._threads.get(name)
        is_wanted = self._is_open and not (name == "replies" and self.is_forbidden)
        if not is_wanted or (thread is not None and thread.is_alive()):
            return True
        if thread is not None:
            logger.error("The thread that hears of results had died: begun again")
        run = self._hear if name == "replies" else self._sweeper.run
        thread = threading.Thread(target=run, name=f"celery-batch-{name}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is ending, or there are too many
            return False
        self._threads[name] = thread
        return True

    def close(self) -> None:
        """Hear and look no more."""
        self._is_open = False
        self._store.wake(self.channel)
        self._sweeper.close()

    def _hear(self) -> None:
        pause = _SOONEST
        while self._is_open and not self.is_forbidden:
            try:
                self._subscribe()
                pause = _SOONEST
                self._read()
            except FORBIDDEN as error:
                logger.warning("Redis does not let us listen (%s): results one by one", error)
                self.is_forbidden = True
                if not self._inbox.is_awaited():  # else the sweeper finds it for those who wait
                    self._is_open = False
                    self._sweeper.close()
            except Exception as error:  # noqa: BLE001 (whatever it is, we must hear again)
                if self._is_open and pause == _SOONEST:  # once for each loss
                    logger.warning("Lost the connection that tells of results: %s", error)
            self._decided.set()
            if self._is_open and not self.is_forbidden:
                time.sleep(pause)
                pause = min(2 * pause, 1.0)

    def _subscribe(self) -> None:
        self._subscription = Subscription(self._store.client(), self.channel)
        self.is_confirmed = True
        self._inbox.look_again()
        self._decided.set()

    def _read(self) -> None:
        subscription = self._subscription
        if subscription is None:
            return
        try:
            while self._is_open:
                payload = subscription.read()
                if payload is None:
                    self.check()
                    continue
                try:
                    replies = read_replies(payload)
                except ValueError as error:
                    logger.warning("Heard what is no reply: %s", error)
                else:
                    has_facts = bool(replies) and replies[0][0] == FACTS_ID
                    said = replies.pop(0)[1] if has_facts else b""
                    self._inbox.deliver(replies, said)
        finally:
            subscription.close()


_listeners: dict[Any, Listener | None] = {}
_guard = threading.RLock()


def listener_for(app: Any, timeout: float = PATIENCE) -> Listener | None:
    """
    Return the app's listener in this process, begun when it is first asked for.

    Its subscription has been confirmed, so what is asked from now on will be heard of.

    Args:
        app: The Celery app.
        timeout: Most seconds to wait for the confirmation.

    Returns:
        None where results go Celery's own way: on other backends than Redis, with
        ``batch_bulk = False``, inside a task, while Redis cannot be reached, or while the
        interpreter ends.
    """
    if task_join_will_block():
        return None
    try:
        listener = _listeners[app]
    except KeyError:
        listener = _begin(app)
    if listener is None or listener.is_forbidden or not listener.wait(timeout):
        return None
    return listener


def is_listening(app: Any) -> bool:
    """
    Return whether the app's replies are heard in this process, without waiting.

    Args:
        app: The Celery app.
    """
    listener = _listeners.get(app)
    return listener is not None and listener.is_confirmed


def is_cut_off(app: Any) -> bool:
    """
    Return whether the app's replies would be heard in this process if Redis could be reached.

    Args:
        app: The Celery app, whose listener was asked for.
    """
    listener = _listeners.get(app)
    if listener is None or listener.is_confirmed or listener.is_forbidden:
        return False
    return listener.has_tried


def _begin(app: Any) -> Listener | None:
    with _guard:
        if app in _listeners:
            return _listeners[app]
        backend = app.backend
        wanted = ResultStore.knows(backend) and app.conf.get("batch_bulk", True)
        listener = Listener(app, ResultStore(backend)) if wanted else None
        if listener is not None and not listener.is_started:
            return None  # perhaps it can be the next time
        if listener is not None:
            import_module("celery_batch.client.group").adopt_groups(app)
        _listeners[app] = listener
        return listener


def close_listener(app: Any) -> None:
    """
    End the app's listener, if it has one; it is begun again when it is asked for.

    That is at once where somebody still waits, in a coroutine or by a future.

    Args:
        app: The Celery app.
    """
    begin = partial(_begin_again, weakref.ref(app))
    with _guard:  # else another one could begin meanwhile, and the inbox take it for closed
        listener = _listeners.pop(app, None)
        if listener is None:
            return
        is_awaited = inbox_of(app).closed(begin)
    listener.close()
    if is_awaited:
        begin()


def _begin_again(app: weakref.ref[Any]) -> None:
    found = app()
    if found is not None:
        _begin(found)


def _begin_anew() -> None:
    global _guard, _listeners
    _guard, _listeners = threading.RLock(), {}  # threads do not survive a fork, and locks stay held


os.register_at_fork(after_in_child=_begin_anew)
