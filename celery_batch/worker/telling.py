"""News for the requests of a batch that has ended: at once, or while the next one runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from celery_batch.worker.news import News
from celery_batch.worker.returns import Returns

__all__ = ["Telling"]

#: Requests told in one pass of the event loop; each costs a fraction of a
#: millisecond in which no message is read and no batch is sent off.
_TOLD_PER_PASS = 16


class Telling:
    """
    Tells requests what became of them.

    Args:
        hub: Celery's event loop; None where there is none.
        returns: Remembers who has heard how it ended.
        run_again: Called with a request whose end could not be stored.
    """

    def __init__(self, hub: Any, returns: Returns, run_again: Callable[[Any], object]) -> None:
        self._hub = hub
        self._returns = returns
        self._run_again = run_again
        self._put_off: deque[News] = deque()

    def tell(self, news: Iterable[News]) -> None:
        """Tell each request its news now; an error of one is not its neighbours'."""
        for each in news:
            request = each.request
            if not each.deliver():
                self._run_again(request)
            elif request.acknowledged:  # one that Celery has stopped is to come again, and run
                self._returns.ended(request)

    def tell_after(self, first: Callable[[], object], news: Iterable[News]) -> None:
        """
        Have the event loop do what cannot wait, and tell the news a few at a time.

        Args:
            first: Called before any of them is told.
            news: For one request each.
        """
        self._put_off.extend(news)
        self._hub.call_soon(self._begin, first)

    def tell_rest(self, *, restarting: bool) -> None:
        """
        Tell all that was put off.

        Args:
            restarting: The connection is gone, and nothing can be acknowledged on it.
        """
        while self._put_off:
            news = self._put_off.popleft()
            if restarting:
                news.request.disown()
            self.tell([news])

    def _begin(self, first: Callable[[], object]) -> None:
        first()
        self._hub.call_soon(self._tell_some)

    def _tell_some(self) -> None:
        for _ in range(min(_TOLD_PER_PASS, len(self._put_off))):
            self.tell([self._put_off.popleft()])
        if self._put_off:
            self._hub.call_soon(self._tell_some)
