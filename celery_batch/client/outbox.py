"""
Letters of many threads in one write.

Whoever finds nobody writing takes all that lie ready and writes them at once; the
others wait for it. No thread of its own, and a failed write raises in every caller
whose letter was in it.

Those who wait are called together when a write is over.  If they stood in line for a
lock instead, each would have to hand it to the next, to find its letter sent long ago.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from time import monotonic
from typing import Any

from celery_batch.client.copied import copied

__all__ = ["FULL", "PIECE", "Letter", "Outbox", "by_key", "last_deadline", "sent_by"]

#: Most letters in one write.
PIECE = 1000

#: Characters after which a write takes no more letters: they are copied to be sent, and
#: Redis serves nobody else while it takes them in.
FULL = 8 << 20

#: Seconds after which who waits looks for itself: a signal's handler may raise in whoever
#: was about to call it.
_LOOK_AFTER = 1.0

_until: ContextVar[float] = ContextVar("celery_batch_until", default=math.inf)


@contextmanager
def sent_by(deadline: float) -> Iterator[None]:
    """
    Give up at a deadline on calls that are made meanwhile and that the broker has not taken.

    It is kept where the call is a `Letter`.  Letters that are written together are given up
    together, at the last of their deadlines.

    Args:
        deadline: By the monotonic clock.
    """
    token = _until.set(deadline)
    try:
        yield
    finally:
        _until.reset(token)


class Letter:
    """
    A message on its way to a list in Redis.

    Args:
        key: The list, with its prefix.
        text: The message, or most of it.
    """

    __slots__ = ("error", "is_gathered", "key", "sent", "text", "until")

    def __init__(self, key: str, text: str | bytes) -> None:
        self.key = key
        self.text = text
        self.sent = False
        #: Whether it is one of many calls, of which it is told which were sent.
        self.is_gathered = False
        self.error: BaseException | None = None
        #: When its sender gives up, by the monotonic clock.
        self.until = _until.get()

    @property
    def is_done(self) -> bool:
        """Whether it needs to be written no more."""
        return self.sent or self.error is not None


class Outbox:
    """
    Takes letters from any thread, and returns when they are in the broker.

    Args:
        write: Writes letters and marks those that are `sent`; raises for the others.  It may
            be given a producer to write them with.
    """

    def __init__(self, write: Callable[..., None]) -> None:
        self._write = write
        self._ready: deque[Letter] = deque()
        #: Reentrant: what a signal's handler sends in the midst of a write is written at once.
        self._writing = threading.RLock()
        #: Whom to call when a write is over; each waits for its lock to be released.
        self._waiting: deque[threading.Lock] = deque()
        #: Whether the last write went well: the next one need not connect first.
        self._is_connected = False

    def __len__(self) -> int:
        """Return how many letters wait for a write."""
        return len(self._ready)

    def send(self, letters: Iterable[Letter]) -> None:
        """
        Return when all of them are sent.

        Raises:
            TimeoutError: Their deadline is over; see `sent_by`.
            Exception: What came of writing the first one that is not.
        """
        own = list(letters)
        until = last_deadline(own)
        self._ready.extend(own)
        try:
            while not all(letter.is_done for letter in own):
                self._write_or_wait(until)
        except BaseException as error:
            for letter in own:  # nobody is to send them later in our stead
                letter.error = letter.error or error
            raise
        for letter in own:
            if letter.error is not None:
                raise copied(letter.error)  # other threads may raise it, too

    def write_with(self, producer: Any, letters: list[Letter]) -> None:
        """
        Write letters at once, with a producer that the caller holds.

        Who holds one may not wait for another thread's write, which may want the same one.

        Args:
            producer: Celery's.
            letters: To be written.

        Raises:
            Exception: What came of writing them; those that are sent are marked.
        """
        self._write(letters, producer)

    def _write_or_wait(self, until: float) -> None:
        """Write what lies ready, or wait until who writes has written; the caller looks again."""
        left = until - monotonic()
        if left <= 0:
            raise TimeoutError("the time was over before the broker had taken the calls")
        if not self._writing.acquire(blocking=False):
            call = threading.Lock()
            call.acquire()
            self._waiting.append(call)
            # Once more: who is found writing now will call when that is over, and find us.
            if not self._writing.acquire(blocking=False):
                call.acquire(timeout=min(_LOOK_AFTER, left))
                return
        is_bounded = self._is_connected or until == math.inf
        try:
            if is_bounded:
                self._write_ready()
        finally:
            self._writing.release()
            self._call_waiting()
        if not is_bounded:
            self._write_beside(left)

    def _write_beside(self, seconds: float) -> None:
        """Have another thread write what lies ready: it may connect, which no deadline ends."""
        call = threading.Lock()
        call.acquire()
        self._waiting.append(call)
        writer = threading.Thread(target=self._write_free, name="celery-batch-write", daemon=True)
        try:
            writer.start()
        except RuntimeError:  # the interpreter is ending, or there are too many threads
            self._write_free()
        call.acquire(timeout=seconds)

    def _write_free(self) -> None:
        if not self._writing.acquire(blocking=False):
            return  # who writes calls those who wait
        try:
            self._write_ready()
        finally:
            self._writing.release()
            self._call_waiting()

    def _call_waiting(self) -> None:
        with suppress(IndexError):
            while True:
                self._waiting.popleft().release()

    def _write_ready(self) -> None:
        piece = self._next_piece()
        if not piece:
            return
        self._is_connected = False
        try:
            self._write(piece)
            self._is_connected = True
        except Exception as error:  # noqa: BLE001 (each of its senders raises it)
            for letter in piece:
                if not letter.sent:
                    letter.error = error
        except BaseException:
            # This thread is told to end, the others are not: theirs is written again.
            self._ready.extendleft(letter for letter in reversed(piece) if not letter.sent)
            raise

    def _next_piece(self) -> list[Letter]:
        piece: list[Letter] = []
        size = 0
        with suppress(IndexError):  # no more; asking first says nothing, handlers take some, too
            while len(piece) < PIECE and size < FULL:
                letter = self._ready.popleft()
                if letter.error is None:
                    piece.append(letter)
                    size += len(letter.text)
        return piece


def last_deadline(letters: Iterable[Letter]) -> float:
    """Return when the last of the letters' senders gives up, by the monotonic clock."""
    return max((letter.until for letter in letters), default=math.inf)


def by_key(letters: Iterable[Letter]) -> dict[str, list[Letter]]:
    """Return the letters of each list, in order."""
    found: dict[str, list[Any]] = {}
    for letter in letters:
        found.setdefault(letter.key, []).append(letter)
    return found
