"""Results that this process awaits, and their callbacks.

Every result holds its reply, and the inbox knows replies only weakly: one that
nobody holds any more leaves nothing behind.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from celery.app.amqp import AMQP
from celery.app.base import Celery, PendingConfiguration
from celery.app.control import Control
from celery.backends.base import Backend
from celery.result import ResultBase
from celery.utils.functional import noop
from celery.utils.time import timezone
from kombu.connection import Connection
from kombu.transport.virtual import Channel, QoS
from kombu.utils.objects import cached_property

from celery_batch.protocol import STARTED_ID, BatchInfo, read_facts

__all__ = [
    "FOLLOW",
    "STRAY",
    "SWEEP",
    "Barriers",
    "PendingResults",
    "PollSchedule",
    "Reply",
    "Round",
    "Watcher",
    "call_each",
    "is_delivering",
    "pending_of",
    "renew_locks",
]


logger = logging.getLogger(__name__)


_local = threading.local()


def call_each(waiting: Iterable[Callable[[], object]]) -> None:
    """
    Call functions one after the other; what one raises is logged, and the others are called.

    Args:
        waiting: The functions.
    """
    before = is_delivering()
    _local.is_delivering = True
    try:
        for each in waiting:
            try:
                each()
            except Exception:
                logger.exception("A callback of a result has failed")
    finally:
        _local.is_delivering = before


def is_delivering() -> bool:
    """Return whether this thread is the one that others wait for."""
    return getattr(_local, "is_delivering", False)


#: Seconds for which a barrier that is being built is kept, and looked at often.
YOUNG = 1.0


class Barriers:
    """
    Celery's barriers, counted from several threads; they know no lock of their own.

    One whose members all come while it is built never looks whether they have; then
    `whole` does.  One that nobody ever finishes is kept by its maker alone.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        #: When those that are being built counted their first member.
        self._young: dict[Any, float] = {}
        self._old: WeakSet[Any] = WeakSet()

    def __len__(self) -> int:
        """Return how many are being built, as far as we know."""
        return len(self._young) + len(self._old)

    def count(self, barrier: Any) -> None:
        """Count one member for a barrier, and call those who wait if it was the last."""
        with self._lock:
            if barrier.ready or barrier.cancelled:
                return
            barrier._value += 1  # noqa: SLF001
            if not barrier.finalized:
                if barrier not in self._old:
                    self._young.setdefault(barrier, time.monotonic())
                return
            if not _becomes_ready(barrier):
                return
        _call(barrier)  # not under the lock: it may wait for another thread

    def whole(self) -> tuple[list[Callable[[], object]], bool]:
        """Return what is to be called for those built meanwhile, and whether to look soon again."""
        found: list[Callable[[], object]] = []
        newest = time.monotonic() - YOUNG
        with self._lock:
            for barrier in (*self._young, *self._old):
                if barrier.finalized:
                    self._young.pop(barrier, None)
                    self._old.discard(barrier)
                    if _becomes_ready(barrier):
                        found.append(partial(_call, barrier))
                elif self._young.get(barrier, newest) < newest:
                    del self._young[barrier]
                    self._old.add(barrier)
            return found, bool(self._young)


def _becomes_ready(barrier: Any) -> bool:
    if barrier.ready or barrier.p.ready or barrier._value < barrier.size:  # noqa: SLF001
        return False
    barrier.ready = True
    return True


def _call(barrier: Any) -> None:
    barrier.p(*barrier.args, **barrier.kwargs)


#: Whose cached properties we read, and those of their subclasses.  Kombu locks such a property
#: each time it is read, for all objects of the class together; an app's settings are loaded
#: within such a lock, and each store or read of a result asks for some of the backend's.
_CLASSES = (
    *(AMQP, Backend, Celery, Channel, Connection, Control, PendingConfiguration, QoS),
    *(ResultBase, type(timezone)),
)


def renew_locks() -> None:
    """
    Give every cached property of Celery's apps and backends a lock that nobody holds.

    In a process just forked nobody else can hold one, and what a thread held that this
    process does not have would stay held for ever.
    """
    for each in set(_with_subclasses(_CLASSES)):
        for found in list(vars(each).values()):
            if isinstance(found, cached_property):
                found.lock = threading.RLock()


def _with_subclasses(classes: Iterable[type]) -> Iterator[type]:
    for each in classes:
        yield each
        yield from _with_subclasses(type.__subclasses__(each))


#: Seconds after which a result may well be there without our having heard of it.
STALE = 1.0


class PendingResults:
    """
    All replies of one app in this process; safe for threads.

    A signal handler may ask while its own thread does, hence the kind of lock.
    """

    def __init__(self) -> None:
        self._known: WeakValueDictionary[str, Reply] = WeakValueDictionary()
        self._lock = threading.RLock()
        #: Who leaves as soon as somebody has the lock.
        self._left: deque[tuple[Reply, Watcher]] = deque()
        self._poll_schedule = PollSchedule()
        self._restored = 0.0
        #: Those of groups, which count our replies.
        self.barriers = Barriers()
        #: False in a process that was forked from the one it belongs to.
        self.is_here = True
        #: Called when a look is due sooner than was foreseen.
        self.hurry: Callable[[], object] = noop
        #: Begins a listener where the last one was closed; nothing while there is one.
        self._begin: Callable[[], object] = noop

    def __len__(self) -> int:
        """Return how many replies are known."""
        return len(self._known)

    def reply(self, task_id: str) -> Reply:
        """Return the reply to a task, one for all who hold its result."""
        new = Reply(self, task_id)  # not under the lock: it may start the garbage collector
        with self._lock:
            return self._known.setdefault(task_id, new)

    def expect(self, replies: Iterable[Reply]) -> list[Reply]:
        """
        Note that messages which name our channel are about to be sent.

        Args:
            replies: Those to the messages; another stands for one that is there from an
                earlier run.
        """
        now = time.monotonic()
        expected = []
        with self._lock:
            for reply in replies:
                if reply.value is not None:
                    reply = Reply(self, reply.task_id)  # noqa: PLW2901
                    self._known[reply.task_id] = reply
                reply.is_asked = reply.is_told = True
                reply.since = now
                expected.append(reply)
        return expected

    def expect_new(self, task_id: str) -> Reply:
        """Return the reply to a message with a new id, which is about to be sent."""
        reply = Reply(self, task_id)
        reply.is_asked = reply.is_told = True
        reply.since = time.monotonic()
        with self._lock:
            self._known[task_id] = reply
        return reply

    def is_stale(self, reply: Reply) -> bool:
        """Return whether a look might find what we have not heard of; then one should follow."""
        now = time.monotonic()
        is_stale = now - reply.since > STALE or reply.since <= self._restored
        if is_stale:
            reply.since = now
        return is_stale

    def watch(self, reply: Reply, watcher: Watcher) -> bool:
        """
        Have a function called when a reply is there, and look for the reply meanwhile.

        Returns:
            False if it is there already; the function will not be called.
        """
        is_urgent = not reply.is_told or self.is_stale(reply)
        with self._lock:
            self._let_go()
            if reply.value is not None:
                return False
            reply.watchers = [*(reply.watchers or ()), watcher]
            self._poll_schedule.watch(reply, is_urgent=is_urgent)
        self._begin()
        if is_urgent:
            self.hurry()
        return True

    def follow(self, reply: Reply, watcher: Watcher, seen: bytes | None) -> bool:
        """
        Have a function called when a task's state changes, and look for that meanwhile.

        Args:
            reply: The task's.
            watcher: Called once.
            seen: What of the reply's `latest` is known already.

        Returns:
            False if there is something new already; the function will not be called.
        """
        with self._lock:
            self._let_go()
            if reply.value is not None or reply.latest not in (None, seen):
                return False
            reply.followers = [*(reply.followers or ()), watcher]
            is_fresh = self._poll_schedule.follow(reply)
        self._begin()
        if is_fresh:
            self.hurry()
        return True

    def listen(self, reply: Reply, watcher: Watcher) -> bool:
        """Have a function called when a reply is heard of, as `watch`, but do not look for it."""
        with self._lock:
            if reply.value is not None:
                return False
            reply.listeners = [*(reply.listeners or ()), watcher]
            return True

    def opened(self, hurry: Callable[[], object]) -> None:
        """Note that a listener hears and looks for all that is watched."""
        self.hurry, self._begin = hurry, noop

    def closed(self, begin: Callable[[], object]) -> bool:
        """
        Note that the listener was closed; return whether somebody waits for a reply.

        Args:
            begin: Begins another one; called as soon as somebody waits.
        """
        with self._lock:
            self.hurry, self._begin = noop, begin
        return self.is_awaited()

    def is_awaited(self) -> bool:
        """Return whether somebody waits for a reply that is looked for."""
        with self._lock:
            self._let_go()
            return len(self._poll_schedule) > 0

    def leave(self, reply: Reply, watcher: Watcher) -> bool:
        """Return whether a function was still to be called; it will not be any more."""
        with self._lock:
            return self._leave(reply, watcher)

    def leave_soon(self, reply: Reply, watcher: Watcher) -> None:
        """
        Have a function not be called any more, but for a moment perhaps; take no lock.

        This is for what ends with its last reference: the garbage collector may end it
        in any thread at any moment, in our own midst.
        """
        self._left.append((reply, watcher))

    def deliver(self, heard: Iterable[tuple[str, bytes]], said: bytes = b"") -> None:
        """
        Take values in, and tell those who wait.

        Args:
            heard: Ids and stored values, in final states.
            said: What was told of the batch that they come from; empty for nothing.
        """
        watchers: list[Watcher] = []
        with self._lock:
            self._let_go()
            for number, (task_id, value) in enumerate(heard):
                reply = self._known.get(task_id)
                if reply is None:
                    if value and task_id.startswith(STARTED_ID):
                        watchers += self._note(task_id.removeprefix(STARTED_ID), value)
                    continue
                if said and reply.said is None:
                    reply.said = said, number
                if reply.value is not None:
                    continue
                reply.value = value
                if reply.watchers or reply.followers:
                    watchers += (*(reply.watchers or ()), *(reply.followers or ()))
                    reply.watchers = reply.followers = None
                    self._poll_schedule.drop(reply)
                watchers += reply.listeners or ()
                reply.listeners = None
        call_each(watchers)

    def note(self, found: Iterable[tuple[str, bytes]], before: Mapping[str, bytes | None]) -> None:
        """
        Take in what a look has found of tasks that have not ended, and tell who follows them.

        Args:
            found: Ids and stored values; an empty one if there is none any more.
            before: What was known before the look; what was told meanwhile is newer.
        """
        watchers: list[Watcher] = []
        with self._lock:
            for task_id, value in found:
                reply = self._known.get(task_id)
                if reply is not None and reply.latest is before[task_id]:
                    watchers += self._note(task_id, value)
        call_each(watchers)

    def _note(self, task_id: str, value: bytes) -> list[Watcher]:
        reply = self._known.get(task_id)
        if reply is None or reply.value is not None:
            return []
        reply.latest, reply.since = value, time.monotonic()
        followers, reply.followers = reply.followers or [], None
        self._poll_schedule.drop(reply)
        return followers

    def close_barriers(self) -> bool:
        """Tell the groups that were built meanwhile; return whether to look soon again."""
        whole, is_building = self.barriers.whole()
        call_each(whole)
        return is_building

    def take(self, most: int) -> list[str]:
        """Return ids that should be looked for now, those first that waited longest."""
        with self._lock:
            self._let_go()
            return self._poll_schedule.take(most)

    def latest(self, task_ids: Iterable[str]) -> dict[str, bytes | None]:
        """Return what is known of tasks that have not ended, by their ids."""
        with self._lock:
            replies = {task_id: self._known.get(task_id) for task_id in task_ids}
            return {
                task_id: None if reply is None else reply.latest
                for task_id, reply in replies.items()
            }

    def next_look(self) -> float:
        """Return when a look is due, by the monotonic clock."""
        with self._lock:
            return self._poll_schedule.next_due()

    def look_again(self) -> None:
        """Look for everything soon: we may have missed what was told meanwhile."""
        with self._lock:
            self._restored = time.monotonic()
            self._poll_schedule.all_due()
        self.hurry()

    def _let_go(self) -> None:
        while self._left:
            with suppress(IndexError):  # a signal's handler has been as quick
                self._leave(*self._left.popleft())

    def _leave(self, reply: Reply, watcher: Watcher) -> bool:
        for those in (reply.watchers, reply.listeners, reply.followers):
            if those and watcher in those:
                those.remove(watcher)
                self._poll_schedule.drop(reply)
                return True
        return False


_inboxes: WeakKeyDictionary[Any, PendingResults] = WeakKeyDictionary()


def pending_of(app: Any) -> PendingResults:
    """
    Return the app's inbox in this process; a fork has its own.

    Args:
        app: The Celery app.
    """
    found = _inboxes.get(app)
    return found if found is not None else _inboxes.setdefault(app, PendingResults())


def _begin_anew() -> None:
    global _inboxes  # noqa: PLW0603 (the lock of the old ones may be held for ever)
    for pending in list(_inboxes.values()):
        pending.is_here = False
    _inboxes = WeakKeyDictionary()
    renew_locks()


os.register_at_fork(after_in_child=_begin_anew)


#: Called once, without arguments, by the thread that heard of the reply.
Watcher = Callable[[], object]


class Reply:
    """
    What will be heard of one task.

    Args:
        pending: Whose it is.
        task_id: The task's id.
    """

    __slots__ = (
        *("__weakref__", "followers", "pending", "is_asked", "is_told", "latest", "listeners"),
        *("said", "since", "task_id", "value", "watchers"),
    )

    def __init__(self, pending: PendingResults, task_id: str) -> None:
        self.pending = pending
        self.task_id = task_id
        #: Whether this process, or the one it was forked from, has asked for it.
        self.is_asked = False
        #: Whether the message that asked names our channel.
        self.is_told = False
        #: When somebody last looked for it, or asked for it.
        self.since = 0.0
        #: The stored value, still encoded; empty if it is too large to be sent along.
        self.value: bytes | None = None
        #: What was stored before, still encoded, as far as we know; empty once it has gone.
        self.latest: bytes | None = None
        #: What was told of its batch, still encoded, and its own place in that.
        self.said: tuple[bytes, int] | None = None
        #: Called when it comes; as long as there are watchers, it is looked for as well.
        self.listeners: list[Watcher] | None = None
        self.watchers: list[Watcher] | None = None
        #: Called when it comes, or something else is stored; meanwhile it is looked for.
        self.followers: list[Watcher] | None = None

    @property
    def batch_info(self) -> BatchInfo | None:
        """What was told of its batch, if anything was."""
        said = self.said
        return None if said is None else read_facts(*said)


class Round:
    """
    Replies that are looked for in turn, each again after the same time.

    So the order in which they came is the order in which they are due.

    Args:
        interval: Seconds between two looks for the same reply.
    """

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self._due: dict[Reply, float] = {}

    def __len__(self) -> int:
        """Return how many replies somebody waits for."""
        return len(self._due)

    def add(self, reply: Reply, due: float) -> None:
        """Look for a reply from a time on, unless that is done already."""
        self._due.setdefault(reply, due)

    def put_off(self, reply: Reply, now: float) -> None:
        """Look for a reply again, last of all."""
        self._due.pop(reply, None)  # else it would keep its place
        self._due[reply] = now + self.interval

    def drop(self, reply: Reply) -> None:
        """Look for a reply no more."""
        self._due.pop(reply, None)

    def take(self, now: float, most: int) -> list[Reply]:
        """Take out the replies whose time has come, at most so many."""
        taken: list[Reply] = []
        for reply, due in self._due.items():
            if due > now or len(taken) >= most:
                break
            taken.append(reply)
        for reply in taken:
            del self._due[reply]
        return taken

    def next_due(self) -> float:
        """Return when the next reply is due; infinity if there is none."""
        return next(iter(self._due.values()), math.inf)

    def all_due(self) -> None:
        """Have all of them due at once."""
        self._due = dict.fromkeys(self._due, 0.0)


#: Seconds between two looks at what a missed notification would have told of.
SWEEP = 0.9


#: Seconds between two looks at what nobody tells us of.
STRAY = 0.2


#: Seconds between two looks at a task whose states are followed.
FOLLOW = 0.5


class PollSchedule:
    """The replies of one inbox that are looked for; whoever calls has the inbox's lock."""

    def __init__(self) -> None:
        self._told = Round(SWEEP)
        self._strays = Round(STRAY)
        self._followed = Round(FOLLOW)
        #: Those of whom nothing is known as yet.
        self._fresh = Round(0.0)

    def __len__(self) -> int:
        """Return how many looks are due some time."""
        return sum(map(len, self._polls()))

    def watch(self, reply: Reply, *, is_urgent: bool) -> None:
        """Look for a reply: soon, or in case we should not hear of it."""
        if is_urgent:
            self._strays.add(reply, 0.0)
        else:
            self._told.add(reply, time.monotonic() + SWEEP)

    def follow(self, reply: Reply) -> bool:
        """Look for whatever is stored of a task; return whether a look is due at once."""
        due = reply.since + FOLLOW
        is_fresh = due <= time.monotonic()
        if is_fresh:
            self._fresh.add(reply, 0.0)
        else:
            self._followed.add(reply, due)
        return is_fresh

    def drop(self, reply: Reply) -> None:
        """Look no more for what nobody waits for any more."""
        if not reply.watchers:
            self._told.drop(reply)
            self._strays.drop(reply)
        if not reply.followers:
            self._followed.drop(reply)
            self._fresh.drop(reply)

    def take(self, most: int) -> list[str]:
        """Return ids that should be looked for now, those first that waited longest."""
        now = time.monotonic()
        due = self._strays.take(now, most)
        due += self._told.take(now, most - len(due))
        for reply in due:
            (self._told if reply.is_told else self._strays).put_off(reply, now)
        followed = self._fresh.take(now, most - len(due))
        followed += self._followed.take(now, most - len(due) - len(followed))
        for reply in followed:
            self._followed.put_off(reply, now)
            reply.since = now
        return list(dict.fromkeys(reply.task_id for reply in (*due, *followed)))

    def next_due(self) -> float:
        """Return when a look is due, by the monotonic clock."""
        return min(each.next_due() for each in self._polls())

    def all_due(self) -> None:
        """Have all looks due at once."""
        for each in (self._told, self._strays, self._followed):
            each.all_due()

    def _polls(self) -> tuple[Round, ...]:
        return self._strays, self._told, self._followed, self._fresh
