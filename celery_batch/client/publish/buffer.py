"""Collects messages of many threads into one write.

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
from typing import Any, Protocol

from celery_batch.client.results.result import copied

__all__ = [
    "FULL",
    "PIECE",
    "Gathering",
    "PreparedMessage",
    "SendBuffer",
    "by_key",
    "gathered",
    "gathering",
    "last_deadline",
    "sent_by",
]


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

    It applies to a `PreparedMessage`.  Messages that are written together are given up together, at
    the last of their deadlines.

    Args:
        deadline: By the monotonic clock.
    """
    token = _until.set(deadline)
    try:
        yield
    finally:
        _until.reset(token)


class PreparedMessage:
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


class SendBuffer:
    """
    Takes letters from any thread, and returns when they are in the broker.

    Args:
        write: Writes letters and marks those that are `sent`; raises for the others.  It may
            be given a producer to write them with.
    """

    def __init__(self, write: Callable[..., None]) -> None:
        self._write = write
        self._ready: deque[PreparedMessage] = deque()
        #: Reentrant: what a signal's handler sends in the midst of a write is written at once.
        self._writing = threading.RLock()
        #: Whom to call when a write is over; each waits for its lock to be released.
        self._waiting: deque[threading.Lock] = deque()
        #: Whether the last write went well: the next one need not connect first.
        self._is_connected = False

    def __len__(self) -> int:
        """Return how many letters wait for a write."""
        return len(self._ready)

    def send(self, prepared_messages: Iterable[PreparedMessage]) -> None:
        """
        Return when all of them are sent.

        Raises:
            TimeoutError: Their deadline is over; see `sent_by`.
            Exception: What came of writing the first one that is not.
        """
        own = list(prepared_messages)
        until = last_deadline(own)
        self._ready.extend(own)
        try:
            while not all(prepared.is_done for prepared in own):
                self._write_or_wait(until)
        except BaseException as error:
            for prepared in own:  # nobody is to send them later in our stead
                prepared.error = prepared.error or error
            raise
        for prepared in own:
            if prepared.error is not None:
                raise copied(prepared.error)  # other threads may raise it, too

    def write_with(self, producer: Any, prepared_messages: list[PreparedMessage]) -> None:
        """
        Write letters at once, with a producer that the caller holds.

        Who holds one may not wait for another thread's write, which may want the same one.

        Args:
            producer: Celery's.
            prepared_messages: To be written.

        Raises:
            Exception: What came of writing them; those that are sent are marked.
        """
        self._write(prepared_messages, producer)

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
            for prepared in piece:
                if not prepared.sent:
                    prepared.error = error
        except BaseException:
            # This thread is told to end, the others are not: theirs is written again.
            self._ready.extendleft(prepared for prepared in reversed(piece) if not prepared.sent)
            raise

    def _next_piece(self) -> list[PreparedMessage]:
        piece: list[PreparedMessage] = []
        size = 0
        with suppress(IndexError):  # no more; asking first says nothing, handlers take some, too
            while len(piece) < PIECE and size < FULL:
                prepared = self._ready.popleft()
                if prepared.error is None:
                    piece.append(prepared)
                    size += len(prepared.text)
        return piece


def last_deadline(prepared_messages: Iterable[PreparedMessage]) -> float:
    """Return when the last of the letters' senders gives up, by the monotonic clock."""
    return max((prepared.until for prepared in prepared_messages), default=math.inf)


def by_key(prepared_messages: Iterable[PreparedMessage]) -> dict[str, list[PreparedMessage]]:
    """Return the letters of each list, in order."""
    found: dict[str, list[Any]] = {}
    for prepared in prepared_messages:
        found.setdefault(prepared.key, []).append(prepared)
    return found


#: Seconds after which a canvas' first call waits for no more of a generator's.
_LONGEST = 1.0


_current: ContextVar[tuple[Gathering | None, Any]] = ContextVar(
    "celery_batch_gathering", default=(None, None)
)


class Burst(Protocol):
    """Calls that go another way than by letters, also together."""

    def send(self, apply: Callable[..., Any], options: Any) -> Any:
        """Send one call by Celery's `apply_async` with some options."""

    def flush(self) -> None:
        """Return when all is sent."""

    def close(self) -> None:
        """Let go of what is held."""


class Gathering:
    """
    Letters on their way, 1,000 or 8 MiB in one write.

    Args:
        app: Whose canvas this is, if it is one's.
    """

    def __init__(self, app: Any = None) -> None:
        self.app = app
        #: Results that exist already, by their tasks' ids.
        self.frozen: dict[str, Any] = {}
        #: Results of what is surely sent.
        self.sent: list[Any] = []
        #: Results of what may not have been.
        self.unsent: list[Any] = []
        #: Why.
        self.failure: Exception | None = None
        #: RabbitMQ's way, if that is the broker.
        self.burst: Burst | None = None
        self._kept: list[tuple[PreparedMessage, Any]] = []
        self._size = 0
        self._since = 0.0
        self._send_buffer: SendBuffer | None = None
        #: What a canvas holds while its calls are made.
        self._producer: Any = None

    def add(self, prepared: PreparedMessage, result: Any, send_buffer: SendBuffer) -> None:
        """
        Keep a letter, and write when there is a piece of them.

        Args:
            prepared: To be sent.
            result: Of the call.
            send_buffer: Of the app that sends it.
        """
        if send_buffer is not self._send_buffer:
            self.flush()
            self._send_buffer = send_buffer
        if not self._kept:
            self._since = monotonic()
        prepared.is_gathered = True
        self._kept.append((prepared, result))
        self._size += len(prepared.text)
        if self._is_full and self.app is None:  # a canvas notes its call's result first
            self.flush()

    @property
    def _is_full(self) -> bool:
        return len(self._kept) >= PIECE or self._size >= FULL

    def flush_if_due(self) -> None:
        """
        Write what is kept if there is a piece of it, or if it was kept for long.

        Raises:
            OperationalError: Not all of it could be sent.
        """
        if self._kept and (self._is_full or monotonic() - self._since > _LONGEST):
            self.flush()

    def kept(self) -> list[Any]:
        """Return the results of the calls that are still to be written."""
        return [result for _, result in self._kept]

    @contextmanager
    def writing_with(self, producer: Any) -> Iterator[None]:
        """
        Write meanwhile with a producer that is held already: there may be no other.

        Args:
            producer: Celery's.
        """
        self._producer = producer
        try:
            yield
        finally:
            self._producer = None

    def flush(self) -> None:
        """
        Write what is kept.

        Raises:
            OperationalError: Not all of it could be sent.
        """
        if self.burst is not None:
            self.burst.flush()
        kept, self._kept, self._size = self._kept, [], 0
        if not kept or self._send_buffer is None:
            return
        prepared_messages = [prepared for prepared, _ in kept]
        try:
            if self._producer is None:
                self._send_buffer.send(prepared_messages)
            else:
                self._send_buffer.write_with(self._producer, prepared_messages)
        except Exception as error:
            self.failure = error
            raise
        finally:
            self.sent += [result for prepared, result in kept if prepared.sent]
            self.unsent += [result for prepared, result in kept if not prepared.sent]

    def close(self) -> None:
        """Let go of what is held for further writes."""
        burst, self.burst = self.burst, None
        if burst is not None:
            burst.close()


@contextmanager
def gathering(app: Any) -> Iterator[Gathering]:
    """
    Keep what an app's canvas sends meanwhile; whoever asks for this flushes it.

    Args:
        app: The Celery app.
    """
    gathering = Gathering(app)
    token = _current.set((gathering, None))
    try:
        yield gathering
    finally:
        _current.reset(token)
        gathering.close()


def gathered(task: Any, options: Any) -> Gathering | None:
    """
    Return where a call is to be kept, if it is one that is gathered.

    Others go at once, since who makes them may wait for their results before the
    next write.

    Args:
        task: The task that is called.
        options: The call's options.
    """
    gathering, wanted = _current.get()
    if gathering is None or gathering.app is None:
        return gathering if wanted is task else None
    is_of_canvas = "producer" in options and gathering.app is task.app
    return gathering if is_of_canvas else None


def gathered_by(gathering: Gathering, task: Any, call: Callable[[], Any]) -> Any:
    """
    Make a call that is kept, and return its result.

    Args:
        gathering: Keeps it.
        task: The task that is called.
        call: Calls it.
    """
    token = _current.set((gathering, task))
    try:
        return call()
    finally:
        _current.reset(token)
