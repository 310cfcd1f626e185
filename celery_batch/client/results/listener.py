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
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any
from uuid import uuid4

from celery import states
from celery._state import task_join_will_block
from celery.backends.redis import RedisBackend, SentinelBackend
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError, RedisError
from redis.retry import Retry

from celery_batch.client.results.pending import PendingResults
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
]

logger = logging.getLogger(__name__)

#: Seconds without an answer after which a connection is given up.
TIMEOUT = 5.0

#: Seconds without a message after which the connection is tested with a ping.
QUIET = 10.0

#: Ids polled in one command.
POLL_LIMIT = 500

#: Seconds the store poller sleeps for each second that a poll took, and at most.
REST, LONGEST_REST = 4.0, 1.0

#: Seconds to the first try after a lost connection, and at most between two tries.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


class ResultReader:
    """
    Where an app's results are stored.

    Args:
        backend: Celery's result backend, on Redis; its settings are used, not its connections.
    """

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
        return str(self._backend._transport_options.get("global_keyprefix", ""))  # noqa: SLF001

    def client(self) -> Any:
        """Return a Redis client that fails soon and does not reconnect by itself."""
        params = dict(self._backend.connparams, max_connections=None)
        params["socket_timeout"] = min(params.get("socket_timeout") or TIMEOUT, TIMEOUT)
        if "path" not in params and not params.get("socket_connect_timeout"):
            params["socket_connect_timeout"] = TIMEOUT
        client = self._backend._create_client(**params)  # noqa: SLF001
        client.set_retry(Retry(NoBackoff(), 0))
        return client

    def read(self, task_ids: list[str]) -> list[bytes]:
        """Return the stored value of each task, empty where there is none."""
        keys = [self._backend.get_key_for_task(task_id) for task_id in task_ids]
        return [value or b"" for value in self._client.mget(keys)]

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

    def __init__(self, client: Any, channel: str) -> None:
        self._pubsub = client.pubsub()
        self._has_pinged = False
        self._pubsub.subscribe(channel)
        confirmed = self._pubsub.get_message(timeout=TIMEOUT)
        if confirmed is None or confirmed["type"] != "subscribe":
            self.close()
            raise ConnectionError("Redis does not confirm the subscription")

    def read(self) -> bytes | None:
        """
        Wait for a message and return it; None where there was none for a while.

        Raises:
            RedisError: The connection is lost.
            ConnectionError: The other side answers no ping.
        """
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
    """
    Polls the store for results that are awaited and of which no notification has come.

    Args:
        registry: The pending results.
        store: Where results are stored.
        check_threads: Called about once a second, to restart threads that have died.
    """

    def __init__(
        self, registry: PendingResults, store: ResultReader, check_threads: Callable[[], object]
    ) -> None:
        self._registry = registry
        self._store = store
        self._check_threads = check_threads
        #: Released to wake the thread: a signal handler can do that, unlike setting an Event.
        self._wakeup = threading.Lock()
        self._is_open = True
        self._is_failing = False

    def poll_soon(self) -> None:
        """Poll now for what is due."""
        with suppress(RuntimeError):  # it has been woken already
            self._wakeup.release()

    def close(self) -> None:
        """End soon."""
        self._is_open = False
        self.poll_soon()

    def run(self) -> None:
        """Poll whenever something is due, until closed."""
        rest = 0.0
        while self._is_open:
            if rest:
                time.sleep(rest)
            else:
                until_next = self._registry.next_poll() - time.monotonic()
                self._wakeup.acquire(timeout=min(max(until_next, 0.0), 1.0))
            self._check_threads()
            rest = self._poll()
            self._registry.complete_barriers()
        self._store.close()

    def _poll(self) -> float:
        """Poll for some results; return for how long to rest."""
        began = time.monotonic()
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
                elif value != (latest or b""):
                    changes.append((pending, latest, value))
            self._registry.deliver(ends)
            self._registry.deliver_states(changes)
        except Exception as error:  # noqa: BLE001 (whatever it is, polling has to go on)
            if not self._is_failing:
                logger.warning("Cannot poll for results: %s", error)
            self._is_failing = True
            return 0.1
        self._is_failing = False
        return min(REST * (time.monotonic() - began), LONGEST_REST)


class Listener:
    """One app's subscription in this process, and the two threads that receive and poll."""

    def __init__(self, app: Any, store: ResultReader) -> None:
        #: The name of this process' reply channel.
        self.channel = f"{store.prefix}{REPLY_CHANNEL}{uuid4()}"
        #: Whether Redis does not allow the subscription.
        self.is_forbidden = False
        #: Whether the subscription was confirmed once.
        self.is_confirmed = False
        #: The pending results of the app.
        self.registry = PendingResults.of(app)
        self._store = store
        self._decided = threading.Event()
        self._is_open = True
        self._subscription: Subscription | None = None
        self._poller = StorePoller(self.registry, store, self.check_threads)
        self._guard = threading.Lock()
        self._threads: dict[str, threading.Thread] = {}
        self.registry.listener_started(self._poller.poll_soon)
        #: Whether its threads could be started; none can while the interpreter ends.
        self.is_started = self.check_threads()
        if not self.is_started:
            self.close()

    @property
    def has_tried(self) -> bool:
        """Whether the first try to subscribe has ended."""
        return self._decided.is_set()

    def wait(self, timeout: float) -> bool:
        """Return whether the subscription was confirmed once; wait for the first try to end."""
        if not self.is_confirmed:
            self._decided.wait(timeout)
        return self.is_confirmed

    def expect(self, result: Any) -> None:
        """Get ready for a `BatchResult`, before the message that names our channel is sent."""
        result.pending_result = self.registry.expect(result.pending_result)

    def check_threads(self) -> bool:
        """Restart the threads that have died; return False if one could not be started."""
        if not self._guard.acquire(blocking=False):
            return True  # another thread does, or perhaps this one
        try:
            return all([self._check("replies"), self._check("poll")])
        finally:
            self._guard.release()

    def _check(self, name: str) -> bool:
        thread = self._threads.get(name)
        is_wanted = self._is_open and not (name == "replies" and self.is_forbidden)
        if not is_wanted or (thread is not None and thread.is_alive()):
            return True
        if thread is not None:
            logger.error("The thread that receives results had died: started again")
        run = self._receive if name == "replies" else self._poller.run
        thread = threading.Thread(target=run, name=f"celery-batch-{name}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is ending, or there are too many
            return False
        self._threads[name] = thread
        return True

    def close(self) -> None:
        """Receive and poll no more."""
        self._is_open = False
        self._store.wake(self.channel)
        self._poller.close()

    def _receive(self) -> None:
        pause = _FIRST_PAUSE
        while self._is_open and not self.is_forbidden:
            try:
                self._subscribe()
                pause = _FIRST_PAUSE
                self._read()
            except NoPermissionError as error:
                logger.warning(
                    "Redis does not allow the subscription (%s): results are received one by one",
                    error,
                )
                self.is_forbidden = True
                if not self.registry.is_awaited():  # else the poller finds what is awaited
                    self._is_open = False
                    self._poller.close()
            except Exception as error:  # noqa: BLE001 (whatever it is, we must subscribe again)
                if self._is_open and pause == _FIRST_PAUSE:  # once for each loss
                    logger.warning("Lost the connection that receives results: %s", error)
            self._decided.set()
            if self._is_open and not self.is_forbidden:
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _subscribe(self) -> None:
        self._subscription = Subscription(self._store.client(), self.channel)
        self.is_confirmed = True
        self.registry.poll_all()
        self._decided.set()

    def _read(self) -> None:
        subscription = self._subscription
        if subscription is None:
            return
        try:
            while self._is_open:
                payload = subscription.read()
                if payload is None:
                    self.check_threads()
                    continue
                try:
                    replies = read_replies(payload)
                except ValueError as error:
                    logger.warning("Received a message that holds no replies: %s", error)
                else:
                    has_facts = bool(replies) and replies[0][0] == FACTS_ID
                    facts = replies.pop(0)[1] if has_facts else b""
                    self.registry.deliver(replies, facts)
        finally:
            subscription.close()


_listeners: dict[Any, Listener | None] = {}

_guard = threading.RLock()


def listener_for(app: Any, timeout: float = TIMEOUT) -> Listener | None:
    """
    Return the app's listener in this process, started by the first call.

    Its subscription has been confirmed, so notifications of what is sent from now on arrive.

    Args:
        app: The Celery app.
        timeout: Most seconds to wait for the confirmation.

    Returns:
        None where results go Celery's own way: on other backends than Redis, with
        ``batch_bulk = False``, inside a task, while Redis cannot be reached, or while the
        interpreter ends.
    """
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
    while listener and not listener.has_tried and time.monotonic() < end:  # noqa: ASYNC110 (of a thread)
        await asyncio.sleep(0.002)  # once in a process


def is_listening(app: Any) -> bool:
    """Return whether the app's results are received in this process, without waiting."""
    listener = _listeners.get(app)
    return listener is not None and listener.is_confirmed


def is_cut_off(app: Any) -> bool:
    """Return whether the app's results would be received here if Redis could be reached."""
    listener = _listeners.get(app)
    if listener is None or listener.is_confirmed or listener.is_forbidden:
        return False
    return listener.has_tried


def _start(app: Any) -> Listener | None:
    with _guard:
        if app in _listeners:
            return _listeners[app]
        backend = app.backend
        listener = None
        if ResultReader.supports(backend) and app.conf.get("batch_bulk", True):
            listener = Listener(app, ResultReader(backend))
            if not listener.is_started:
                return None  # perhaps it can be the next time
            import_module("celery_batch.client.results.group").adopt_groups(app)
        _listeners[app] = listener
        return listener


def close_listener(app: Any) -> None:
    """
    Close the app's listener, if it has one; the next call that needs one starts another.

    If a coroutine or a future still waits for a result, another one starts at once.

    Args:
        app: The Celery app.
    """
    restart = partial(_restart, weakref.ref(app))
    with _guard:  # else another one could start meanwhile, and the registry take it for closed
        listener = _listeners.pop(app, None)
        if listener is None:
            return
        is_awaited = PendingResults.of(app).listener_closed(restart)
    listener.close()
    if is_awaited:
        restart()


def _restart(app: weakref.ref[Any]) -> None:
    found = app()
    if found is not None:
        _start(found)


def _reset_after_fork() -> None:
    global _guard, _listeners
    _guard, _listeners = threading.RLock(), {}  # threads do not survive a fork, and locks stay held


os.register_at_fork(after_in_child=_reset_after_fork)
