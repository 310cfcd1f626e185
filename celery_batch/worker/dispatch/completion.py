"""Completes the requests of a batch that has ended."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from celery_batch.worker.dispatch.follow_up import FollowUp
from celery_batch.worker.dispatch.handler_call import HandlerCall, succeed
from celery_batch.worker.scheduling.redelivery import RedeliveryCache

__all__ = ["Completion"]

logger = logging.getLogger(__name__)

#: Requests completed in one pass of the event loop, in which no message is read and no batch
#: is submitted; a routine success costs a twentieth of the others.
_NOTIFICATIONS_PER_PASS, _SUCCESSES_PER_PASS = 16, 256

_SUCCESS = (0, None, 0.0)


class Completion:
    """
    Notifies requests of their ends, at once or a few in each pass of the event loop.

    Args:
        hub: Celery's event loop; None where there is none.
        redelivery: Records which requests have ended.
        run_again: Called with a request whose end could not be stored.
    """

    def __init__(
        self, hub: Any, redelivery: RedeliveryCache, run_again: Callable[[Any], object]
    ) -> None:
        self._hub = hub
        self._redelivery = redelivery
        self._run_again = run_again
        self._handler_calls: deque[HandlerCall] = deque()
        self._succeeded: deque[Any] = deque()

    def notify(self, handler_calls: Iterable[HandlerCall]) -> None:
        """Call handlers now; an error of one does not affect the others."""
        for each in handler_calls:
            request = each.request
            if not each.call():
                self._run_again(request)
            elif request.acknowledged:  # else Celery has stopped it, and it comes again and runs
                self._redelivery.add_ended([request])

    def complete(self, follow_up: FollowUp) -> None:
        """Notify all requests of a batch now."""
        self._succeed(follow_up.succeeded)
        self.notify(follow_up.handler_calls)

    def complete_after(self, first: Callable[[], object], follow_up: FollowUp) -> None:
        """Have the event loop call `first`, then notify the requests of a batch a few at a time."""
        self._handler_calls.extend(follow_up.handler_calls)
        self._succeeded.extend(follow_up.succeeded)
        self._hub.call_soon(self._begin, first)

    def flush(self, *, restarting: bool) -> None:
        """
        Notify all requests that are left.

        Args:
            restarting: The connection is lost, so that none can be acknowledged.
        """
        if restarting:
            for request in [*self._succeeded, *(each.request for each in self._handler_calls)]:
                request.disown()
        while self._handler_calls or self._succeeded:
            self._notify_some()

    def _begin(self, first: Callable[[], object]) -> None:
        first()
        self._hub.call_soon(self._next_pass)

    def _next_pass(self) -> None:
        self._notify_some()
        if self._handler_calls or self._succeeded:
            self._hub.call_soon(self._next_pass)

    def _notify_some(self) -> None:
        self._succeed(_popped(self._succeeded, _SUCCESSES_PER_PASS))
        self.notify(_popped(self._handler_calls, _NOTIFICATIONS_PER_PASS))

    def _succeed(self, requests: list[Any]) -> None:
        wanted = [request for request in requests if not request.is_done]  # revoked as it ran
        try:
            succeed(wanted)
        except Exception:
            logger.exception("Could not finish %d requests at once: one by one", len(wanted))
            self.notify(HandlerCall(request, request.on_success, (_SUCCESS,)) for request in wanted)
        else:
            self._redelivery.add_ended(requests)


def _popped(items: deque[Any], most: int) -> list[Any]:
    return [items.popleft() for _ in range(min(most, len(items)))]
