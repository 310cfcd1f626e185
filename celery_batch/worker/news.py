"""Something to tell one of Celery's requests, without harm to its neighbours."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["News"]

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

    def deliver(self) -> bool:
        """
        Call the handler; whatever it raises, the others hear theirs.

        Returns:
            Whether the request has ended.  If its result cannot be stored, it has
            not, and is to run again: nobody may wait for ever.
        """
        if self.request.is_done:  # revoked while it ran: its end has been announced
            return True
        try:
            with self.request.acknowledging_last():
                self.tell(*self.facts)
        except Exception as error:
            logger.exception("Could not settle %s[%s]", self.request.name, self.request.id)
            return self.request.acknowledged or self._fail(error)
        return True

    def _fail(self, error: Exception) -> bool:
        request = self.request
        try:
            if request.has_succeeded:  # and heard of it; only what came after went wrong
                request.acknowledge()
                return True
            request.task.backend.mark_as_failure(request.id, error, request=request._context)  # noqa: SLF001
            request.acknowledge()
        except Exception as failure:  # noqa: BLE001 (what cannot be stored is computed again)
            logger.warning("%s[%s] runs again: %s", request.name, request.id, failure)
            return False
        return True
