"""Something to tell one of Celery's requests, without harm to its neighbours."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from celery.utils.functional import noop

__all__ = ["News", "disown"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class News:
    """
    What one of Celery's requests has to hear.

    Args:
        request: Celery's request.
        tell: The handler of the request to call.
        facts: Its arguments.
    """

    request: Any
    tell: Callable[..., Any]
    facts: tuple[Any, ...]

    def deliver(self) -> None:
        """Call the handler; whatever it raises, the request ends, and the others hear theirs."""
        if self.request.is_done:  # revoked while it ran: its end has been announced
            return
        try:
            self.tell(*self.facts)
        except Exception as error:
            logger.exception("Could not settle %s[%s]", self.request.name, self.request.id)
            self._end_anyhow(error)

    def disown(self) -> None:
        """Keep the handler from acknowledging on a connection that is gone."""
        disown(self.request)

    def _end_anyhow(self, error: Exception) -> None:
        """See that nobody waits for ever: a result if one can be stored, else another try."""
        request = self.request
        if request.acknowledged:
            return
        try:
            request.task.backend.mark_as_failure(request.id, error, request=request._context)  # noqa: SLF001
        except Exception as failure:  # noqa: BLE001 (what cannot be stored is computed again)
            logger.warning("%s[%s] goes back to its queue: %s", request.name, request.id, failure)
            request.reject(requeue=True)
        else:
            request.acknowledge()


def disown(request: Any) -> None:
    """Let a request acknowledge nothing any more: the connection of its message is gone."""
    request._on_ack = request._on_reject = noop  # noqa: SLF001
