"""
Replies to what this process has asked, and who waits for which.

Every result holds its reply, and the inbox knows replies only weakly: one that
nobody holds any more leaves nothing behind.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from celery.utils.functional import noop

from celery_batch.client.barriers import Barriers
from celery_batch.client.callbacks import call_each
from celery_batch.client.forks import renew_locks
from celery_batch.client.looks import Looks
from celery_batch.client.reply import Reply, Watcher
from celery_batch.replies import STARTED_ID

__all__ = ["Inbox", "inbox_of"]

#: Seconds after which a result may well be there without our having heard of it.
STALE = 1.0


class Inbox:
    """
    All replies of one app in this process; safe for threads.

    A signal handler may ask while its own thread does, hence the kind of lock.
    """

    def __init__(self) -> None:
        self._known: WeakValueDictionary[str, Reply] = WeakValueDictionary()
        self._lock = threading.RLock()
        #: Who leaves as soon as somebody has the lock.
        self._left: deque[tuple[Reply, Watcher]] = deque()
        self._looks = Looks()
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
            self._looks.watch(reply, is_urgent=is_urgent)
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
            is_fresh = self._looks.follow(reply)
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
            return len(self._looks) > 0

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
                    self._looks.drop(reply)
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
        self._looks.drop(reply)
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
            return self._looks.take(most)

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
            return self._looks.next_due()

    def look_again(self) -> None:
        """Look for everything soon: we may have missed what was told meanwhile."""
        with self._lock:
            self._restored = time.monotonic()
            self._looks.all_due()
        self.hurry()

    def _let_go(self) -> None:
        while self._left:
            with suppress(IndexError):  # a signal's handler has been as quick
                self._leave(*self._left.popleft())

    def _leave(self, reply: Reply, watcher: Watcher) -> bool:
        for those in (reply.watchers, reply.listeners, reply.followers):
            if those and watcher in those:
                those.remove(watcher)
                self._looks.drop(reply)
                return True
        return False


_inboxes: WeakKeyDictionary[Any, Inbox] = WeakKeyDictionary()


def inbox_of(app: Any) -> Inbox:
    """
    Return the app's inbox in this process; a fork has its own.

    Args:
        app: The Celery app.
    """
    found = _inboxes.get(app)
    return found if found is not None else _inboxes.setdefault(app, Inbox())


def _begin_anew() -> None:
    global _inboxes  # noqa: PLW0603 (the lock of the old ones may be held for ever)
    for inbox in list(_inboxes.values()):
        inbox.is_here = False
    _inboxes = WeakKeyDictionary()
    renew_locks()


os.register_at_fork(after_in_child=_begin_anew)
