"""The answers, watched from outside: when each came, and whether it stood."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self

import redis
from celery import states

__all__ = ["Answer", "Answers"]


@dataclass(frozen=True, slots=True)
class Answer:
    """
    A terminal state as the result backend holds it.

    Args:
        state: Celery's word for it.
        result: The value; of an error, its type's name.
        seen: When it was seen first, in seconds of the monotonic clock.
    """

    state: str
    result: Any
    seen: float

    def same_as(self, other: Answer) -> bool:
        """Say whether two looks saw one and the same end."""
        return (self.state, self.result) == (other.state, other.result)


class Answers:
    """
    Ask for all results again and again, over a connection of its own.

    Args:
        connect: Makes a client of the result backend that no proxy breaks.
    """

    def __init__(self, connect: Callable[[], redis.Redis]) -> None:
        self._client = connect()
        self._ids: set[str] = set()
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        #: The first terminal state of each task.
        self.first: dict[str, Answer] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._enough.set()
        self._thread.join()
        self._client.close()

    def expect(self, ids: Iterable[str]) -> None:
        """Watch for these, too."""
        self._ids = self._ids | set(ids)

    def wait(self, ids: Iterable[str], timeout: float) -> None:
        """Return when all of these are answered, or the time is up."""
        wanted = set(ids)
        deadline = time.monotonic() + timeout
        while not wanted <= self.first.keys() and time.monotonic() < deadline:
            time.sleep(0.05)

    def look(self, ids: Iterable[str]) -> dict[str, Answer]:
        """Return the terminal states that are stored now."""
        wanted = list(ids)
        if not wanted:
            return {}
        metas = self._client.mget([f"celery-task-meta-{one}" for one in wanted])
        now = time.monotonic()
        found = ((one, json.loads(meta)) for one, meta in zip(wanted, metas, strict=True) if meta)
        return {one: _answer(meta, now) for one, meta in found if meta["status"] in _TERMINAL}

    def _watch(self) -> None:
        while not self._enough.wait(0.05):
            try:
                self.first |= self.look(self._ids - self.first.keys())
            except (redis.RedisError, OSError):
                continue  # the server is away; it is asked again


_TERMINAL = states.READY_STATES | {states.REJECTED, states.IGNORED}


def _answer(meta: dict[str, Any], now: float) -> Answer:
    result = meta["result"]
    if meta["status"] != states.SUCCESS and isinstance(result, dict):
        result = result["exc_type"]
    return Answer(meta["status"], result, now)
