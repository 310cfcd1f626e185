"""Completes the requests of a batch that has ended."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from celery_batch.worker.dispatch.notification import Notification, succeed
from celery_batch.worker.dispatch.outcome import Ending
from celery_batch.worker.scheduling.redelivery import RedeliveryCache

__all__ = ["Completion"]

logger = logging.getLogger(__name__)

#: Requests told in one pass of the event loop, in which no message is read and no batch
#: is sent off; what is routine costs a twentieth of what is not.
_NEWS_PER_PASS, _DONE_PER_PASS = 16, 256

_SUCCESS = (0, None, 0.0)


class Completion:
    """
    Tells requests what became of them.

    Args:
        hub: Celery's event loop; None where there is none.
        redelivery: Remembers who has heard how it ended.
        run_again: Called with a request whose end could not be stored.
    """

    def __init__(
        self, hub: Any, redelivery: RedeliveryCache, run_again: Callable[[Any], object]
    ) -> None:
        self._hub = hub
        self._redelivery = redelivery
        self._run_again = run_again
        self._put_off: deque[Notification] = deque()
        self._put_off_done: deque[Any] = deque()

    def tell(self, news: Iterable[Notification]) -> None:
        """Tell each request its news now; an error of one is not its neighbours'."""
        for each in news:
            request = each.request
            if not each.deliver():
                self._run_again(request)
            elif request.acknowledged:  # one that Celery has stopped is to come again, and run
                self._redelivery.ended(request)

    def tell_at_once(self, ending: Ending) -> None:
        """Tell every request of a batch how it ended."""
        self._succeed(ending.done)
        self.tell(ending.news)

    def tell_after(self, first: Callable[[], object], ending: Ending) -> None:
        """
        Have the event loop do what cannot wait, and tell the requests a few at a time.

        Args:
            first: Called before any of them is told.
            ending: What they are to hear.
        """
        self._put_off.extend(ending.news)
        self._put_off_done.extend(ending.done)
        self._hub.call_soon(self._begin, first)

    def tell_rest(self, *, restarting: bool) -> None:
        """
        Tell all that was put off.

        Args:
            restarting: The connection is gone, and nothing can be acknowledged on it.
        """
        if restarting:
            for request in [*self._put_off_done, *(news.request for news in self._put_off)]:
                request.disown()
        while self._put_off or self._put_off_done:
            self._tell_a_few()

    def _begin(self, first: Callable[[], object]) -> None:
        first()
        self._hub.call_soon(self._tell_some)

    def _tell_some(self) -> None:
        self._tell_a_few()
        if self._put_off or self._put_off_done:
            self._hub.call_soon(self._tell_some)

    def _tell_a_few(self) -> None:
        self._succeed(_taken(self._put_off_done, _DONE_PER_PASS))
        self.tell(_taken(self._put_off, _NEWS_PER_PASS))

    def _succeed(self, requests: list[Any]) -> None:
        wanted = [request for request in requests if not request.is_done]  # revoked as it ran
        try:
            succeed(wanted)
        except Exception:
            logger.exception("Could not settle %d requests at once: one by one", len(wanted))
            self.tell(Notification(request, request.on_success, (_SUCCESS,)) for request in wanted)
        else:
            self._redelivery.all_answered(requests)


def _taken(line: deque[Any], most: int) -> list[Any]:
    return [line.popleft() for _ in range(min(most, len(line)))]
