"""Something to tell one of Celery's requests, without harm to its neighbours."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kombu.exceptions import EncodeError

__all__ = ["News"]

logger = logging.getLogger(__name__)

#: What is wrong with what is to be stored, and will be the next time.
_LASTING_ERRORS = (EncodeError, TypeError, ValueError)


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
            Whether the request has ended.  If its result cannot be stored now, it has
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
            try:
                request.task.backend.mark_as_failure(request.id, error, request=request._context)  # noqa: SLF001
            except _LASTING_ERRORS:
                logger.exception("No end of %s[%s] can be stored", request.name, request.id)
            request.acknowledge()
        except Exception as failure:  # noqa: BLE001 (what cannot be stored is computed again)
            logger.warning("%s[%s] runs again: %s", request.name, request.id, failure)
            return False
        return True
