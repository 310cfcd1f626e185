"""Receives the results of this process on one connection and one channel.

A worker tells the channel of each batch that has ended; who asked finds the name
in `Listener.channel` and puts it into its messages.
"""

from __future__ import annotations

import logging
import os

# redis imports this one when it makes its first connections; in a process that forks
# just then, the child would wait for ever for an import that nobody finishes.
import secrets  # noqa: F401
import threading
import time
import weakref
from collections.abc import Callable, Iterable
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

from celery_batch.client.results.pending import PendingResults, Reply, pending_of
from celery_batch.protocol import FACTS_ID, REPLY_CHANNEL, read_replies

__all__ = [
    "Listener",
    "ResultStore",
    "Subscription",
    "Sweeper",
    "close_listener",
    "is_cut_off",
    "is_listening",
    "listener_for",
]


#: Seconds without an answer after which a connection is given up.
TIMEOUT = 5.0


#: Seconds without a message after which we ask whether the other side still lives.
QUIET = 10.0


class ResultStore:
    """
    Where an app's results are stored.

    Args:
        backend: Celery's result backend, on Redis; its settings are used, not its connections.
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._client = self.client()

    @staticmethod
    def knows(backend: Any) -> bool:
        """Return whether a backend stores its results as we know it."""
        return type(backend) in (RedisBackend, SentinelBackend)

    @property
    def prefix(self) -> str:
        """What all keys and channels of this app begin with."""
        return str(self._backend._transport_options.get("global_keyprefix", ""))  # noqa: SLF001

    def client(self) -> Any:
        """Return a Redis client that fails soon and does not connect again by itself."""
        params = dict(self._backend.connparams, max_connections=None)
        params["socket_timeout"] = min(params.get("socket_timeout") or TIMEOUT, TIMEOUT)
        if "path" not in params and not params.get("socket_connect_timeout"):
            params["socket_connect_timeout"] = TIMEOUT
        client = self._backend._create_client(**params)  # noqa: SLF001
        client.set_retry(Retry(NoBackoff(), 0))
        return client

    def read(self, task_ids: list[str]) -> list[tuple[str, bytes]]:
        """
        Return tasks with their stored values, empty where there is none.

        Raises:
            RedisError: Redis did not answer.
        """
        key = self._backend.get_key_for_task
        values = self._client.mget([key(task_id) for task_id in task_ids])
        return [(task_id, value or b"") for task_id, value in zip(task_ids, values, strict=True)]

    def is_final(self, value: bytes) -> bool:
        """Return whether a stored value is a task's end."""
        try:
            return self._backend.decode(value)["status"] in states.READY_STATES
        except Exception:  # noqa: BLE001 (it is for those who wait to meet this error)
            return True

    def wake(self, channel: str) -> None:
        """Have whoever hears a channel read a message without replies."""
        with suppress(RedisError):
            self._client.publish(channel, b"")

    def close(self) -> None:
        """Let go of the connections."""
        self._client.connection_pool.disconnect()


class Subscription:
    """
    One channel, heard on a connection of its own.

    Args:
        client: A Redis client that does not connect again by itself.
        channel: Its name.

    Raises:
        RedisError: Redis does not answer, or does not allow it.
    """

    def __init__(self, client: Any, channel: str) -> None:
        self._pubsub = client.pubsub()
        self._asked = False
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
            ConnectionError: It is silent: the other side is gone.
        """
        message = self._pubsub.get_message(timeout=TIMEOUT if self._asked else QUIET)
        if message is None:
            if self._asked:
                raise ConnectionError("Redis has not answered a ping")
            self._pubsub.ping()
            self._asked = True
            return None
        self._asked = False
        data = message["data"]
        if message["type"] != "message":
            return None
        return data.encode() if isinstance(data, str) else data

    def close(self) -> None:
        """Let go of the connection."""
        self._pubsub.close()


#: What a Redis says that does not let us listen.
FORBIDDEN = (NoPermissionError,)


logger = logging.getLogger(__name__)


#: Ids asked for in one command.
PIECE = 500


#: Seconds it sleeps for each second that it reads, when much is due.
REST = 4.0


#: Most seconds that it sleeps, however long it has read.
LONGEST_REST = 1.0


class Sweeper:
    """
    Looks in the store for replies that somebody waits for and nobody has told of.

    Args:
        pending: The replies.
        store: Where results are stored.
        look_after: Called about once a second, to see whether others still work.
    """

    def __init__(
        self, pending: PendingResults, store: ResultStore, look_after: Callable[[], object]
    ) -> None:
        self._pending = pending
        self._store = store
        self._look_after = look_after
        #: Free when rung; an Event's own lock would stop a signal handler that rings, too.
        self._waker = threading.Lock()
        self._is_open = True
        self._is_failing = False

    def hurry(self) -> None:
        """Look now for what is due."""
        with suppress(RuntimeError):  # rung already
            self._waker.release()

    def close(self) -> None:
        """End soon."""
        self._is_open = False
        self.hurry()

    def run(self) -> None:
        """Look whenever something is due, until closed."""
        rest = 0.0
        while self._is_open:
            wait = min(max(self._pending.next_look() - time.monotonic(), rest), 1.0)
            if rest:
                time.sleep(rest)
            else:
                self._waker.acquire(timeout=wait)
            self._look_after()
            rest = self._sweep()
            if self._pending.close_barriers():
                rest = max(rest, 0.02)
        self._store.close()

    def _sweep(self) -> float:
        """Look for one piece; return for how long to rest."""
        began = time.monotonic()
        try:
            task_ids = self._pending.take(PIECE)
            if not task_ids:
                return 0.0
            before = self._pending.latest(task_ids)
            found = self._store.read(task_ids)
            news = {name: value for name, value in found if value != (before[name] or b"")}
            ends = {name for name, value in news.items() if value and self._store.is_final(value)}
            self._pending.deliver((name, news[name]) for name in ends)
            self._pending.note(((name, news[name]) for name in news.keys() - ends), before)
        except Exception as error:  # noqa: BLE001 (whatever it is, waiting ones must be looked for)
            if not self._is_failing:
                logger.warning("Cannot look for results: %s", error)
            self._is_failing = True
            return 0.1
        self._is_failing = False
        return min(REST * (time.monotonic() - began), LONGEST_REST)


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
        self._pending = pending_of(app)
        self._store = store
        self._decided = threading.Event()
        #: Whether the subscription was confirmed once.
        self.is_confirmed = False
        self._is_open = True
        self._subscription: Subscription | None = None
        self._sweeper = Sweeper(self._pending, store, self.check)
        self._guard = threading.Lock()
        self._threads: dict[str, threading.Thread] = {}
        self._pending.opened(self._sweeper.hurry)
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
        return self._pending.expect_new(task_id)

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
        replies = self._pending.expect([result.reply for result in results])
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
        run = self._receive if name == "replies" else self._sweeper.run
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

    def _receive(self) -> None:
        pause = _SOONEST
        while self._is_open and not self.is_forbidden:
            try:
                self._subscribe()
                pause = _SOONEST
                self._read()
            except FORBIDDEN as error:
                logger.warning("Redis does not let us listen (%s): results one by one", error)
                self.is_forbidden = True
                if not self._pending.is_awaited():  # else the sweeper finds it for those who wait
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
        self._pending.look_again()
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
                    self._pending.deliver(replies, said)
        finally:
            subscription.close()


_listeners: dict[Any, Listener | None] = {}


_guard = threading.RLock()


def listener_for(app: Any, timeout: float = TIMEOUT) -> Listener | None:
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
            import_module("celery_batch.client.results.group").adopt_groups(app)
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
        is_awaited = pending_of(app).closed(begin)
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
