"""What requests are still to hear of batches that have ended."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from celery_batch.worker.ending import Ending
from celery_batch.worker.news import News
from celery_batch.worker.returns import Returns
from celery_batch.worker.routine import succeed

__all__ = ["Untold"]

logger = logging.getLogger(__name__)

#: Requests told in one pass of the event loop, in which no message is read and no batch
#: is sent off; what is routine costs a twentieth of what is not.
_NEWS_PER_PASS, _DONE_PER_PASS = 16, 256

_SUCCESS = (0, None, 0.0)


class Untold:
    """
    News that waits until the event loop has nothing more urgent to do.

    Args:
        tell: Tells one request its news.
        returns: Remembers who has been answered.
    """

    def __init__(self, tell: Callable[[News], None], returns: Returns) -> None:
        self._tell = tell
        self._returns = returns
        self._news: deque[News] = deque()
        self._done: deque[Any] = deque()

    def __bool__(self) -> bool:
        return bool(self._news or self._done)

    def add(self, ending: Ending) -> None:
        """Keep what follows a batch, for later."""
        self._news.extend(ending.news)
        self._done.extend(ending.done)

    def tell_some(self) -> None:
        """Tell a few."""
        done = [self._done.popleft() for _ in range(min(_DONE_PER_PASS, len(self._done)))]
        self._succeed(done)
        for _ in range(min(_NEWS_PER_PASS, len(self._news))):
            self._tell(self._news.popleft())

    def tell_all(self, *, disowned: bool = False) -> None:
        """
        Tell everybody.

        Args:
            disowned: The connection of their messages is gone.
        """
        if disowned:
            for request in [*self._done, *(news.request for news in self._news)]:
                request.disown()
        while self:
            self.tell_some()

    def _succeed(self, requests: list[Any]) -> None:
        wanted = [request for request in requests if not request.is_done]  # revoked as it ran
        try:
            succeed(wanted)
        except Exception:
            logger.exception("Could not settle %d requests at once: one by one", len(wanted))
            for request in wanted:
                self._tell(News(request, request.on_success, (_SUCCESS,)))
        else:
            self._returns.all_answered(requests)
