"""
Collects the messages of many threads into one write.

A thread that finds no other one writing takes all messages that are ready and writes them at
once; the others wait for it.  There is no thread of its own, and a failed write raises in every
caller whose message was in it.

Waiting threads are woken together when a write is over.  If they stood in line for a lock
instead, each would have to hand it to the next, only to find its message sent long ago.
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

from celery_batch.compat.deadline import current_deadline
from celery_batch.errors import copied
from celery_batch.payloads.uploads import Uploads

__all__ = [
    "MOST_CHARACTERS",
    "MOST_MESSAGES",
    "BulkWrite",
    "PreparedMessage",
    "SendBuffer",
    "call_in_bulk",
    "canvas_bulk",
    "current_bulk",
    "last_deadline",
]

#: Most messages in one write.
MOST_MESSAGES = 1000

#: Characters after which a write takes no more messages: they are copied to be sent, and Redis
#: serves no other client while it reads them.
MOST_CHARACTERS = 8 << 20

#: Seconds after which a waiting thread checks by itself: a signal handler may raise in the
#: thread that was about to wake it.
_CHECK_INTERVAL = 1.0

#: Seconds after which a canvas' first call waits for no more members of a generator.
_LONGEST_WAIT = 1.0


class PreparedMessage:
    """A message on its way to a list in Redis, which `key` names with its prefix."""

    __slots__ = ("deadline", "error", "is_one_of_many", "key", "sent", "text")

    def __init__(self, key: str, text: str | bytes) -> None:
        self.key = key
        self.text = text
        self.sent = False
        #: Whether it belongs to a `BulkWrite`, which has to know whether it was sent.
        self.is_one_of_many = False
        self.error: BaseException | None = None
        #: When its sender gives up, by the monotonic clock.
        self.deadline = current_deadline()


class SendBuffer:
    """Takes messages from any thread, and returns when they are in the broker."""

    def __init__(self, write: Callable[..., None]) -> None:
        #: Writes messages and marks those that are `sent`; raises for the others.
        self._write = write
        self._ready: deque[PreparedMessage] = deque()
        #: Reentrant: what a signal handler sends in the midst of a write is written at once.
        self._writing = threading.RLock()
        #: Of threads that wait for the end of a write, each for its lock to be released.
        self._waiting: deque[threading.Lock] = deque()
        #: Whether the last write went well: the next one need not connect first.
        self._is_connected = False

    def __len__(self) -> int:
        """Return how many messages wait for a write."""
        return len(self._ready)

    def send(self, messages: Iterable[PreparedMessage], producer: Any = None) -> None:
        """Return when all are sent, else raise; with a producer they are written at once, alone."""
        own = list(messages)
        if producer is not None:
            self._write(own, producer)
            return
        deadline = last_deadline(own)
        self._ready.extend(own)
        try:
            while not all(message.sent or message.error is not None for message in own):
                self._write_or_wait(deadline)
        except BaseException as error:
            for message in own:  # no other thread is to send them later
                message.error = message.error or error
            raise
        for message in own:
            if message.error is not None:
                raise copied(message.error)  # other threads may raise it, too

    def _write_or_wait(self, deadline: float) -> None:
        """Write what is ready, or wait for the thread that writes; the caller looks again."""
        left = deadline - monotonic()
        if left <= 0:
            raise TimeoutError("the timeout passed before the broker accepted the calls")
        if not self._writing.acquire(blocking=False):
            woken = self._add_waiting()
            # Once more: a thread that is found writing now will wake this one.
            if not self._writing.acquire(blocking=False):
                woken.acquire(timeout=min(_CHECK_INTERVAL, left))
                return
        is_bounded = self._is_connected or deadline == math.inf
        try:
            if is_bounded:
                self._write_ready()
        finally:
            self._release()
        if not is_bounded:
            self._write_in_thread(left)

    def _write_in_thread(self, seconds: float) -> None:
        """Have another thread write what is ready: it may connect, which no deadline ends."""
        woken = self._add_waiting()
        writer = threading.Thread(target=self._try_to_write, name="celery-batch-write", daemon=True)
        try:
            writer.start()
        except RuntimeError:  # the interpreter is ending, or there are too many threads
            self._try_to_write()
        woken.acquire(timeout=seconds)

    def _try_to_write(self) -> None:
        if self._writing.acquire(blocking=False):  # else the thread that writes wakes all
            try:
                self._write_ready()
            finally:
                self._release()

    def _add_waiting(self) -> threading.Lock:
        """Return a lock that is released at the end of a write."""
        lock = threading.Lock()
        lock.acquire()
        self._waiting.append(lock)
        return lock

    def _release(self) -> None:
        """Let other threads write, and wake all that wait."""
        self._writing.release()
        with suppress(IndexError):
            while True:
                self._waiting.popleft().release()

    def _write_ready(self) -> None:
        messages = self._next_messages()
        if not messages:
            return
        self._is_connected = False
        try:
            self._write(messages)
            self._is_connected = True
        except Exception as error:  # noqa: BLE001 (each of its senders raises it)
            for message in messages:
                if not message.sent:
                    message.error = error
        except BaseException:
            # This thread is told to end, the others are not: theirs are written again.
            self._ready.extendleft(message for message in reversed(messages) if not message.sent)
            raise

    def _next_messages(self) -> list[PreparedMessage]:
        messages: list[PreparedMessage] = []
        size = 0
        with suppress(IndexError):  # no more; a signal handler may take some, too
            while len(messages) < MOST_MESSAGES and size < MOST_CHARACTERS:
                message = self._ready.popleft()
                if message.error is None:
                    messages.append(message)
                    size += len(message.text)
        return messages


def last_deadline(messages: Iterable[PreparedMessage]) -> float:
    """Return when the last of the messages' senders gives up, by the monotonic clock."""
    return max((message.deadline for message in messages), default=math.inf)


class BulkWrite:
    """Calls that are written together; `app` is set where a canvas of the app sends them."""

    def __init__(self, app: Any = None) -> None:
        self.app = app
        #: Results of a canvas, which exist before its calls are made, by their tasks' ids.
        self.frozen: dict[str, Any] = {}
        #: Results of calls that were surely sent, and of those that may not have been.
        self.sent: list[Any] = []
        self.unsent: list[Any] = []
        #: Why they were not.
        self.failure: Exception | None = None
        #: Calls whose confirms RabbitMQ sends later: a `ConfirmedBulk`.
        self.confirmed: Any = None
        #: A producer that the caller holds, and with which to write: there may be no other.
        self.producer: Any = None
        #: What is stored before the messages are written.
        self.uploads = Uploads()
        self._messages: list[tuple[PreparedMessage, Any]] = []
        self._size = 0
        self._since = 0.0
        self._send_buffer: SendBuffer | None = None

    def add(self, message: PreparedMessage, result: Any, send_buffer: SendBuffer) -> None:
        """Add a call, and write when there are enough of them."""
        if send_buffer is not self._send_buffer:
            self.flush()
            self._send_buffer = send_buffer
        if not self._messages:
            self._since = monotonic()
        message.is_one_of_many = True
        self._messages.append((message, result))
        self._size += len(message.text)
        if self._is_full and self.app is None:  # a canvas notes its call's result first
            self.flush()

    @property
    def _is_full(self) -> bool:
        size = self._size + self.uploads.size
        return len(self._messages) >= MOST_MESSAGES or size >= MOST_CHARACTERS

    def flush_if_due(self) -> None:
        """Write if there are enough messages, or if the first has waited for long."""
        if self._messages and (self._is_full or monotonic() - self._since > _LONGEST_WAIT):
            self.flush()

    def unwritten(self) -> list[Any]:
        """Return the results of the calls that are still to be written."""
        return [result for _, result in self._messages]

    def finish(self) -> None:
        """Write all messages, after which no more come; raise why some, or payloads, were not."""
        self.flush()
        for error in self.uploads.failed.values():
            raise error

    def error_of(self, result: Any) -> Exception | None:
        """Return why a call was not sent, among those that were not."""
        return self.uploads.failed.get(result.id, self.failure)

    def flush(self) -> None:
        """Write all messages whose payloads can be stored; raise if one is not sent."""
        if self.confirmed is not None:
            self.confirmed.flush()
        pairs, self._messages, self._size = self._messages, [], 0
        try:
            self.uploads.flush()
            failed = self.uploads.failed
            self.uploads.require_chords()  # whose bodies would never run: none is sent
            messages = [each for each, result in pairs if not failed or result.id not in failed]
            if self._send_buffer is not None and messages:
                self._send_buffer.send(messages, self.producer)
        except Exception as error:
            self.failure = error
            raise
        finally:
            for message, result in pairs:
                (self.sent if message.sent else self.unsent).append(result)

    def close(self) -> None:
        """Release what is held for further writes."""
        confirmed, self.confirmed = self.confirmed, None
        if confirmed is not None:
            confirmed.close()


#: The bulk write of this thread or coroutine, and the task whose next call it takes.
_current: ContextVar[tuple[BulkWrite | None, Any]] = ContextVar(
    "celery_batch_bulk", default=(None, None)
)


@contextmanager
def canvas_bulk(app: Any) -> Iterator[BulkWrite]:
    """Collect what an app's canvas sends meanwhile; the caller flushes it."""
    bulk = BulkWrite(app)
    token = _current.set((bulk, None))
    try:
        yield bulk
    finally:
        _current.reset(token)
        bulk.close()


def current_bulk(task: Any, options: Any) -> BulkWrite | None:
    """Return the bulk write that takes a call; None if it is sent at once."""
    bulk, wanted = _current.get()
    if bulk is None or bulk.app is None:
        return bulk if wanted is task else None
    # A call that the canvas does not make itself is sent at once: its caller may wait for it.
    is_of_canvas = "producer" in options and bulk.app is task.app
    return bulk if is_of_canvas else None


def call_in_bulk(bulk: BulkWrite, task: Any, call: Callable[[], Any]) -> Any:
    """Make a task's call, whose message a bulk write takes; return its result."""
    token = _current.set((bulk, task))
    try:
        return call()
    finally:
        _current.reset(token)
