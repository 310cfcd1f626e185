"""One request on its way to the pool process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kombu.serialization import loads

__all__ = ["Delivery"]


@dataclass(frozen=True, slots=True)
class Delivery:
    """
    One request on its way to the pool process, its body still encoded.

    Args:
        task_id: The request's id.
        request: Celery's request dict without arguments.
        body: The message's body; already decoded if `content_type` is None.
        content_type: Of the body.
        content_encoding: Of the body.
        arrived: When it came to this worker, on the monotonic clock; None if nobody knows.
    """

    task_id: str
    request: dict[str, Any]
    body: Any
    content_type: str | None
    content_encoding: str | None
    arrived: float | None = None

    def decode(self, accept: Any) -> tuple[Any, Any, dict[str, Any]]:
        """Return arguments, keyword arguments and what Celery embeds beside them."""
        if self.content_type is None:
            args, kwargs, embed = self.body
        else:
            args, kwargs, embed = loads(
                self.body, self.content_type, self.content_encoding, accept=accept
            )
        return args, kwargs, embed or {}
