"""Sends the requests of a load test at their times, whatever the workers do."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

from celery_batch.tuning.load_test import TIMEOUT, Outcome

__all__ = ["LoadGenerator"]

logger = logging.getLogger(__name__)

#: Seconds from the beginning to the first request's time, in which the first ones are prepared.
_HEAD_START = 0.05

#: An event loop wakes up to so many seconds late, so requests may leave as much early.
_EARLY = 0.001

#: Results that are deleted in one command.
_FORGOTTEN_AT_ONCE = 1000


class LoadGenerator:
    """
    Sends calls of a task, each at its time, and waits for their answers meanwhile.

    Args:
        task: The batch task; its results are stored.
        timeout: Seconds after which a request fails and expires.
    """

    def __init__(self, task: Any, timeout: float) -> None:
        self._task = task
        self._timeout = timeout
        #: The results of requests that have ended.
        self._ended: list[Any] = []

    async def run(self, times: Sequence[float], rows: Sequence[tuple[Any, ...]]) -> list[Outcome]:
        """
        Send a request for each row, and return what became of them, in order.

        Args:
            times: When to send each, in seconds from the beginning, ascending.
            rows: The positional arguments of each.
        """
        began = time.monotonic() + _HEAD_START
        requests: list[asyncio.Task[Outcome]] = []
        async with asyncio.TaskGroup() as group:
            for at, row in zip(times, rows, strict=True):
                # At least once for each request, so that answers are read where this is late.
                await asyncio.sleep(max(began + at - _EARLY - time.monotonic(), 0.0))
                requests.append(group.create_task(self._request(began, at, row)))
        await asyncio.to_thread(self._forget)
        return [request.result() for request in requests]

    async def _request(self, began: float, at: float, row: tuple[Any, ...]) -> Outcome:
        due = min(at, time.monotonic() - began)
        left = began + due + self._timeout - time.monotonic()
        if left <= 0:  # this process is that late
            return self._timed_out(due, None)
        sent = result = None
        error = message = ""
        deadline = asyncio.timeout(left)
        try:
            async with deadline:
                result = await self._task.aapply_async(row, expires=left)
                sent = time.monotonic() - began
                await result
        except Exception as failure:  # noqa: BLE001 (it is counted by its kind)
            error, message = type(failure).__name__, str(failure)
        if deadline.expired():
            return self._timed_out(due, sent)
        ended = time.monotonic() - began
        if result is not None:
            self._ended.append(result)
        info = None if result is None or error else result.batch_info
        return Outcome(due, sent, ended, error, message, None if info is None else info.size)

    def _timed_out(self, due: float, sent: float | None) -> Outcome:
        message = f"no answer within {self._timeout:g} s"
        return Outcome(due, sent, due + self._timeout, TIMEOUT, message)

    def _forget(self) -> None:
        """Delete the stored results, if possible: a test may have made many."""
        ended, self._ended = self._ended, []
        try:
            for start in range(0, len(ended), _FORGOTTEN_AT_ONCE):
                self._task._forget_many(ended[start : start + _FORGOTTEN_AT_ONCE])  # noqa: SLF001
        except Exception as error:  # noqa: BLE001 (whatever the backend raises)
            logger.warning("Could not delete the stored results of the requests: %r", error)
