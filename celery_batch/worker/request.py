"""Celery's request, for a task that shares its process with others."""

from __future__ import annotations

from typing import Any

from celery.worker.request import Request

__all__ = ["BatchRequest"]


class BatchRequest(Request):  # type: ignore[misc]
    """A request whose end must not be its neighbours'."""

    def terminate(self, pool: Any, signal: Any = None) -> None:  # noqa: ARG002 (Celery's signature)
        """
        Revoke this request at once, running or not.

        Celery would kill the process, and with it every other request of the batch.
        The model's answer to this one is dropped instead.
        """
        if not self._already_revoked:
            self._announce_revoked("terminated", True, signal, False)  # noqa: FBT003 (Celery's signature)
