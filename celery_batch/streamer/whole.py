"""A request of more items than one batch has."""

from __future__ import annotations

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
        for part in parts:
            part.add_done_callback(self._heard)
        if not parts:
            self.set_result([])

    def cancel(self) -> bool:
        """
        Give up what is missing, unless the model has all of it already.

        Returns:
            Whether it is given up.
        """
        given_up = [part.cancel() for part in self._parts]
        return any(given_up) or super().cancelled()

    def _heard(self, part: Future[list[Any]]) -> None:
        with self._desk.lock:
            self._missing -= 1
            is_last = not self._missing
        if self.done():
            return
        if part.cancelled():
            super().cancel()
            self.set_running_or_notify_cancel()
        elif (error := part.exception()) is not None:
            self._origin = error.__traceback__
            self.set_exception(error)
            self.cancel()
        elif is_last:
            self.set_result([output for each in self._parts for output in each.result()])
