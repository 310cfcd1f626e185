"""One call of a coroutine that is sent and waited for in one go."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from celery_batch.client.listener import is_listening
from celery_batch.client.loops import Doorbell
from celery_batch.client.outgoing import first_look, send_soon

__all__ = ["Limits", "RoundTrip"]


class Limits(NamedTuple):
    """
    How long a round trip may take, by the monotonic clock.

    Args:
        sent_by: When it is given up unless the call has been sent.
        until: When its answer is waited for no longer; no later than that.
    """

    sent_by: float
    until: float


class RoundTrip:
    """
    One call, from before it is sent until its answer is there.

    Who makes it is woken once, and not when it has been sent and again when it is answered;
    and both limits are one timer.  To be made on an event loop, and by no task of Celery's.

    Args:
        limits: How long it may take.
        on_sent: Called on the loop when the broker has the message.
    """

    __slots__ = ("_bell", "_future", "_on_sent", "_sent_by", "_timer", "_until", "result")

    def __init__(self, limits: Limits, on_sent: Callable[[], object]) -> None:
        self._sent_by, self._until = limits
        self._on_sent = on_sent
        self._bell = Doorbell.here()
        self._future = self._bell.future()
        #: Its result, once the broker has the message.
        self.result: Any = None

    async def make(
        self,
        task: Any,
        args: Any,
        options: dict[str, Any],
        on_abandoned: Callable[[Any], object],
    ) -> Any:
        """
        Send the call, and return its result: as soon as it is answered, or without an answer.

        Args:
            task: The task that is called.
            args: Positional arguments.
            options: As for `apply_async`.
            on_abandoned: Called with the result of a call that was cancelled, if it was sent;
                and of one that was sent too late.

        Raises:
            QueueFull: There is no room for it.
            TimeoutError: It was not sent in time.
        """
        await first_look(task, options)
        now = time.monotonic()
        if now >= self._sent_by:
            raise TimeoutError
        self._arm(self._until - now)
        try:
            with send_soon((task, args, None, options), self._future, self._sent, on_abandoned):
                await self._future
        except asyncio.CancelledError:
            if self.result is not None:
                on_abandoned(self.result)
            raise
        finally:
            self._timer.cancel()
            self._leave()
        return self.result

    def _arm(self, seconds: float) -> None:
        self._timer = self._bell.loop.call_later(max(seconds, 0.0), self._is_late)

    def _sent(self, future: asyncio.Future[Any], result: Any) -> None:
        """Wait for the answer, if there is time; where nobody hears of it, who asks has to look."""
        self.result = result
        self._on_sent()
        is_heard = not (result.is_elsewhere or result.parent) and is_listening(result.app)
        waits = is_heard and time.monotonic() < self._until
        if not (waits and result.reply.inbox.watch(result.reply, self._ring)):
            future.set_result(None)

    def _ring(self) -> None:
        self._bell.ring(self._future)

    def _is_late(self) -> None:
        left = self._sent_by - time.monotonic()
        if self._future.done():
            return
        if self.result is not None:
            self._future.set_result(None)
        elif left <= 0:
            self._future.set_exception(TimeoutError())
        else:
            self._until = -math.inf  # event loops' timers may be a little early
            self._arm(left)

    def _leave(self) -> None:
        """Be told no more, whoever has woken us."""
        if self.result is not None and self.result.reply.value is None:
            self.result.reply.inbox.leave_soon(self.result.reply, self._ring)
