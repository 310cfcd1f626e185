"""Calls that are written together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic
from typing import Any, Protocol

from celery_batch.client.outbox import FULL, PIECE, Letter, Outbox

__all__ = ["Gathering", "gathered", "gathering"]

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
        self._kept: list[tuple[Letter, Any]] = []
        self._size = 0
        self._since = 0.0
        self._outbox: Outbox | None = None
        #: What a canvas holds while its calls are made.
        self._producer: Any = None

    def add(self, letter: Letter, result: Any, outbox: Outbox) -> None:
        """
        Keep a letter, and write when there is a piece of them.

        Args:
            letter: To be sent.
            result: Of the call.
            outbox: Of the app that sends it.
        """
        if outbox is not self._outbox:
            self.flush()
            self._outbox = outbox
        if not self._kept:
            self._since = monotonic()
        letter.is_gathered = True
        self._kept.append((letter, result))
        self._size += len(letter.text)
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
        if not kept or self._outbox is None:
            return
        letters = [letter for letter, _ in kept]
        try:
            if self._producer is None:
                self._outbox.send(letters)
            else:
                self._outbox.write_with(self._producer, letters)
        except Exception as error:
            self.failure = error
            raise
        finally:
            self.sent += [result for letter, result in kept if letter.sent]
            self.unsent += [result for letter, result in kept if not letter.sent]

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
