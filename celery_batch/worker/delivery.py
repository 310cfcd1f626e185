"""One request on its way to the pool process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kombu.serialization import loads

from celery_batch.worker.wellformed import check_payload

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
        is_checked: Whether the body has been decoded before, and is what it has to be.
    """

    task_id: str
    request: dict[str, Any]
    body: Any
    content_type: str | None
    content_encoding: str | None
    arrived: float | None = None
    is_checked: bool = True

    def decode(self, accept: Any) -> tuple[Any, Any, dict[str, Any]]:
        """
        Return arguments, keyword arguments and what Celery embeds beside them.

        Raises:
            Exception: Whatever kombu says of a body that cannot be decoded.
            Malformed: It is something else.
        """
        payload = self.body
        if self.content_type is not None:
            payload = loads(payload, self.content_type, self.content_encoding, accept=accept)
        return self.checked(payload)

    def checked(self, payload: Any) -> tuple[Any, Any, dict[str, Any]]:
        """
        Return a decoded body's parts.

        Raises:
            Malformed: It has not been checked before, and is something else.
        """
        if not self.is_checked:
            check_payload(payload)
        args, kwargs, embed = payload
        return args, kwargs, embed or {}
