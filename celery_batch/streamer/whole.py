"""A request of more items than one batch has."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from celery_batch.streamer.answer import Answer, Desk

__all__ = ["Whole"]


class Whole(Answer):
    """
    The outputs for a request that went in parts.

    Args:
        parts: The answers to them, in order; none for a request of no items.
        desk: Their streamer's.
    """

    def __init__(self, parts: Sequence[Answer], desk: Desk) -> None:
        super().__init__([], desk)
        self._parts = parts
        self._missing = len(parts)
        self._is_decided = False
        for part in parts:
            part.whole = self
            part.add_done_callback(self._heard)
        if not parts:
            self.set_result([])

    def begin_anew(self) -> None:
        """In a forked copy of the process: let go of its locks, and of those of its parts."""
        for each in (self, *self._parts):
            each._condition = threading.Condition()  # noqa: SLF001 (our parts)

    def cancel(self) -> bool:
        """
        Give up what is missing, unless the model has all of it already.

        Returns:
            Whether it is given up.
        """
        if not self.done():
            for part in self._parts:
                part.cancel()
        return self.cancelled()

    def _heard(self, part: Future[list[Any]]) -> None:
        error = None if part.cancelled() else part.exception()
        is_missing = part.cancelled() or error is not None
        with self._desk.lock:  # parts come from many threads
            self._missing -= 1
            if self._is_decided or not (is_missing or not self._missing):
                return
            self._is_decided = True
        if part.cancelled():
            super().cancel()
            self.set_running_or_notify_cancel()
        elif error is not None:
            self._origin = error.__traceback__
            self.set_exception(error)
            for each in self._parts:
                each.cancel()
        else:
            self.set_result([output for each in self._parts for output in each.result()])
