"""
Receives the results of this process on one connection and one reply channel.

A worker publishes the results of each batch to the channels that its messages name;
`Listener.channel` is what this process puts into its messages.
"""

from __future__ import annotations

import asyncio
import logging
import os

# redis imports this one when it makes its first connections; in a process that forks
# just then, the child would wait for ever for an import that never finishes.
import secrets  # noqa: F401
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import closing, suppress
from enum import Enum, auto
from functools import partial
from typing import Any
from uuid import uuid4

from celery import states
from celery._state import task_join_will_block
from celery.backends.redis import RedisBackend, SentinelBackend
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError, RedisError
from redis.retry import Retry

from celery_batch.client.background import OnDemandThread, rest_after
from celery_batch.client.results.pending import NOT_STORED, PendingResults
from celery_batch.compat.deadline import current_deadline
from celery_batch.compat.fast_paths import FastPaths
from celery_batch.compat.redis import log_no_pushes
from celery_batch.compat.results import key_prefix, quick_client
from celery_batch.protocol import FACTS_ID, REPLY_CHANNEL, read_replies

__all__ = [
    "Listener",
    "ResultReader",
    "StorePoller",
    "Subscription",
    "close_listener",
    "is_cut_off",
    "is_listening",
    "listener_for",
    "start_listener",
    "wait_for_listener",
    "why_not_notified",
]

logger = logging.getLogger(__name__)

#: Seconds without an answer after which a connection is given up.
TIMEOUT = 5.0

#: Seconds without a message after which the connection is tested with a ping.
QUIET = 10.0

#: Ids polled in one command.
POLL_LIMIT = 500

#: Seconds after which it checks, at the latest, whether the other thread still runs.
CHECK_INTERVAL = 1.0

#: Seconds to the first try after a lost connection, and at most between two tries.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


class ResultReader:
    """Where an app's results are stored, on Redis; it has connections of its own."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._client = self.client()

    @staticmethod
    def supports(backend: Any) -> bool:
        """Return whether a backend stores its results as we know it."""
        return type(backend) in (RedisBackend, SentinelBackend)

    @property
    def prefix(self) -> str:
        """What all keys and channels of this app begin with."""
        return key_prefix(self._backend)

    def client(self) -> Any:
        """Return a Redis client that fails soon and does not reconnect by itself."""
        return quick_client(self._backend, TIMEOUT, Retry(NoBackoff(), 0))

    def read(self, task_ids: list[str]) -> list[bytes]:
        """Return the stored value of each task, `NOT_STORED` where there is none."""
        keys = [self._backend.get_key_for_task(task_id) for task_id in task_ids]
        return [value or NOT_STORED for value in self._client.mget(keys)]

    def is_final(self, value: bytes) -> bool:
        """Return whether a stored value is a task's end."""
        try:
            return self._backend.decode(value)["status"] in states.READY_STATES
        except Exception:  # noqa: BLE001 (the caller who wants the result meets this error)
            return True

    def wake(self, channel: str) -> None:
        """Have the subscriber of a channel read a message without replies."""
        with suppress(RedisError):
            self._client.publish(channel, b"")

    def close(self) -> None:
        """Close the connections."""
        self._client.connection_pool.disconnect()


class Subscription:
    """A subscription to one channel, on a connection of its own."""

    def __init__(self, client: Any) -> None:
        self._pubsub = client.pubsub()
        self._has_pinged = False

    def start(self, channel: str) -> None:
        """Subscribe, and wait for the confirmation."""
        self._pubsub.subscribe(channel)
        log_no_pushes(self._pubsub)
        confirmed = self._pubsub.get_message(timeout=TIMEOUT)
        if confirmed is None or confirmed["type"] != "subscribe":
            raise ConnectionError("Redis does not confirm the subscription")

    def read(self) -> bytes | None:
        """Wait for a message and return it; None where there was none for a while."""
        message = self._pubsub.get_message(timeout=TIMEOUT if self._has_pinged else QUIET)
        if message is None:
            if self._has_pinged:
                raise ConnectionError("Redis has not answered a ping")
            self._pubsub.ping()
            self._has_pinged = True
            return None
        self._has_pinged = False
        data = message["data"]
        if message["type"] != "message":
            return None
        return data.encode() if isinstance(data, str) else data

    def close(self) -> None:
        """Close the connection."""
        self._pubsub.close()


class StorePoller:
    """Polls the store for results that are awaited and of which no notification has come."""

    def __init__(self, registry: PendingResults, store: ResultReader) -> None:
        self._registry = registry
        self._store = store
        self._rests_until = 0.0
        self._is_failing = False

    def poll(self) -> float:
        """Poll for what is due, unless Redis needs a rest; return the seconds until more is due."""
        began = time.monotonic()
        if began >= self._rests_until:
            self._rests_until = began + self._poll(began)
        self._registry.barriers.complete()
        next_poll = max(self._registry.next_poll(), self._rests_until)
        return min(max(next_poll - time.monotonic(), 0.0), CHECK_INTERVAL)

    def _poll(self, began: float) -> float:
        """Poll for some results; return after how many seconds to poll for others."""
        try:
            due = self._registry.take_due(POLL_LIMIT)
            if not due:
                return 0.0
            before = [pending.latest for pending in due]
            values = self._store.read([pending.task_id for pending in due])
            ends, changes = [], []
            for pending, latest, value in zip(due, before, values, strict=True):
                if value and value != latest and self._store.is_final(value):
                    ends.append((pending.task_id, value))
                elif value != (latest or NOT_STORED):
                    changes.append((pending, latest, value))
            self._registry.deliver(ends)
            self._registry.deliver_states(changes)
        except Exception as error:  # noqa: BLE001 (whatever it is, polling has to go on)
            if not self._is_failing:
                # Not the error: a log record that is kept would keep all that was polled.
                logger.warning("Cannot poll for results: %s", str(error))
            self._is_failing = True
            return time.monotonic() - began + 0.1
        self._is_failing = False
        took = time.monotonic() - began
        return took + rest_after(took)


class ListenerState(Enum):
    """How far a listener has come.  One that was subscribed once stays so: it subscribes again."""

    CONNECTING = auto()
    SUBSCRIBED = auto()
    #: The first try to subscribe has failed; others follow.
    UNREACHABLE = auto()
    #: Redis does not allow the subscription.
    FORBIDDEN = auto()


class Listener:
    """One app's subscription in this process, and the two threads that receive and poll."""

    def __init__(self, app: Any, store: ResultReader) -> None:
        #: The name of this process' reply channel.
        self.channel = f"{store.prefix}{REPLY_CHANNEL}{uuid4()}"
        self.state = ListenerState.CONNECTING
        #: The pending results of the app.
        self.registry = PendingResults.of(app)
        self._store = store
        self._poller = StorePoller(self.registry, store)
        self._is_open = True
        self._has_tried = threading.Event()
        self._threads = {
            "replies": OnDemandThread("celery-batch-replies", self._receive),
            "poll": OnDemandThread("celery-batch-poll", self._poll, store.close),
        }
        self.registry.on_awaited = self.on_awaited
        #: Whether its threads could be started; none can while the interpreter ends.
        self.is_started = False  # the first start is no restart
        self.is_started = self.check_threads()
        if not self.is_started:
            self.close()

    @property
    def is_forbidden(self) -> bool:
        """Whether Redis does not allow the subscription."""
        return self.state is ListenerState.FORBIDDEN

    def wait(self, timeout: float) -> bool:
        """Return whether the subscription was confirmed once; wait for the first try to end."""
        if self.state is ListenerState.CONNECTING:
            left = current_deadline() - time.monotonic()  # of a call
            self._has_tried.wait(max(min(timeout, left), 0.0))
        return self.state is ListenerState.SUBSCRIBED

    def on_awaited(self, is_urgent: bool) -> None:  # noqa: FBT001 (a callback)
        """Poll now if that is urgent; else the next poll is soon enough."""
        if is_urgent:
            with suppress(RuntimeError):  # no thread can be started, as the interpreter is ending
                self._threads["poll"].wake()

    def check_threads(self) -> bool:
        """Restart the threads that have died; return False if one could not be started."""
        for name, thread in self._threads.items():
            is_wanted = self._is_open and not (name == "replies" and self.is_forbidden)
            if not is_wanted or thread.is_alive:
                continue
            if self.is_started:
                logger.error("The thread that receives results had died: started again")
            try:
                thread.wake()
            except RuntimeError:  # the interpreter is ending, or there are too many
                return False
        return True

    def close(self) -> None:
        """Receive and poll no more."""
        self._is_open = False
        self._store.wake(self.channel)
        for thread in self._threads.values():
            thread.stop()

    def _poll(self) -> float | None:
        """Poll in one round; return the seconds until the next."""
        if not self._is_open:
            return None
        self.check_threads()
        return self._poller.poll()

    def _receive(self) -> None:
        """Receive until closed, and subscribe again after each loss."""
        pause = _FIRST_PAUSE
        while self._is_open and not self.is_forbidden:
            try:
                with closing(Subscription(self._store.client())) as subscription:
                    subscription.start(self.channel)
                    pause = _FIRST_PAUSE
                    self.registry.poll_all()
                    self._report(ListenerState.SUBSCRIBED)
                    while self._is_open:
                        self._deliver(subscription.read())
            except NoPermissionError as error:
                logger.warning(
                    "Redis does not allow the subscription (%s): results are received one by one",
                    error,
                )
                self._report(ListenerState.FORBIDDEN)  # the poller finds what is awaited
                return
            except Exception as error:  # noqa: BLE001 (whatever it is, we must subscribe again)
                if self._is_open and pause == _FIRST_PAUSE:  # once for each loss
                    logger.warning("Lost the connection that receives results: %s", error)
            if self.state is ListenerState.CONNECTING:
                self._report(ListenerState.UNREACHABLE)
            if self._is_open:
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _report(self, state: ListenerState) -> None:
        self.state = state
        self._has_tried.set()

    def _deliver(self, payload: bytes | None) -> None:
        """Deliver the replies of a notification; where there was none, check the threads."""
        if payload is None:
            self.check_threads()
            return
        try:
            replies = read_replies(payload)
        except ValueError as error:
            logger.warning("Received a message that holds no replies: %s", error)
            return
        has_facts = bool(replies) and replies[0][0] == FACTS_ID
        facts = replies.pop(0)[1] if has_facts else b""
        self.registry.deliver(replies, facts)


def why_not_notified(app: Any) -> str:
    """Return why workers do not notify this process of results; nothing if they do."""
    if not app.conf.get("batch_bulk", True):
        return "batch_bulk is False"
    if not ResultReader.supports(app.backend):
        return f"results are in {type(app.backend).__name__}"
    return FastPaths.of(app).state("notify").reason


_listeners: dict[Any, Listener | None] = {}

_guard = threading.RLock()


def listener_for(app: Any, timeout: float = TIMEOUT) -> Listener | None:
    """Return the app's listener, started and subscribed; None where results go Celery's own way."""
    listener = start_listener(app)
    return listener if listener is not None and listener.wait(timeout) else None


def start_listener(app: Any) -> Listener | None:
    """Return the app's listener as `listener_for`, but do not wait for the confirmation."""
    if task_join_will_block():
        return None
    try:
        listener = _listeners[app]
    except KeyError:
        listener = _start(app)
    return None if listener is None or listener.is_forbidden else listener


async def wait_for_listener(app: Any) -> None:
    """Start the app's listener, and wait for its first try without blocking the event loop."""
    listener, end = start_listener(app), time.monotonic() + TIMEOUT
    while listener and listener.state is ListenerState.CONNECTING and time.monotonic() < end:  # noqa: ASYNC110 (of a thread)
        await asyncio.sleep(0.002)  # once in a process


def is_listening(app: Any) -> bool:
    """Return whether the app's results are received in this process, without waiting."""
    listener = _listeners.get(app)
    return listener is not None and listener.state is ListenerState.SUBSCRIBED


def is_cut_off(app: Any) -> bool:
    """Return whether the app's results would be received here if Redis could be reached."""
    listener = _listeners.get(app)
    return listener is not None and listener.state is ListenerState.UNREACHABLE


def _start(app: Any) -> Listener | None:
    with _guard:
        if app in _listeners:
            return _listeners[app]
        listener = None
        if not why_not_notified(app):
            listener = Listener(app, ResultReader(app.backend))
            if not listener.is_started:
                return None  # perhaps it can be the next time
        _listeners[app] = listener
        if listener is not None:
            _close_with_app(app)
        return listener


def _close_with_app(app: Any) -> None:
    """Have the app's `close` close its listener, too: a closed app leaves no threads behind."""
    if getattr(app.close, "func", None) is not _close_both:
        app.close = partial(_close_both, weakref.ref(app), app.close)


def _close_both(app: weakref.ref[Any], close_app: Callable[[], object]) -> None:
    close_listener(app())
    close_app()


def close_listener(app: Any) -> None:
    """
    Close the app's listener, if it has one; the next call that needs one starts another.

    The app's own `close` does that, too.  If a coroutine or a future still waits for a
    result, another one starts at once.

    Args:
        app: The Celery app.
    """
    restart = partial(_restart, weakref.ref(app))
    with _guard:  # else another one could start meanwhile, and be replaced as the one to call
        listener = _listeners.pop(app, None)
        if listener is None:
            return
        listener.registry.on_awaited = restart  # what is awaited from here on starts another
        is_awaited = listener.registry.is_awaited()
    listener.close()
    if is_awaited:
        restart()


def _restart(app: weakref.ref[Any], _is_urgent: object = None) -> None:
    found = app()
    if found is not None:
        _start(found)


def _reset_after_fork() -> None:
    global _guard, _listeners
    _guard, _listeners = threading.RLock(), {}  # threads do not survive a fork, and locks stay held


os.register_at_fork(after_in_child=_reset_after_fork)
