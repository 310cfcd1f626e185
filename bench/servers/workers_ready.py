"""Are all workers there?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery_batch.processes.managed_process import ManagedProcess, wait_until

__all__ = ["wait_for_workers"]


def wait_for_workers(
    app: Any, workers: int, children: Sequence[ManagedProcess], timeout: float = 120.0
) -> None:
    """
    Return when so many Celery workers answer.

    Raises:
        ServerFailed: One of those ended, or the time is up; with its log's last lines.
    """

    def why_not_ready() -> str:
        missing = workers - len(app.control.ping(timeout=1.0, limit=workers))
        return f"{missing} of {workers} do not answer" if missing else ""

    wait_until(why_not_ready, children, what="workers", timeout=timeout)
