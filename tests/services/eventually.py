"""Questions that a busy machine may leave without an answer in time, and that are asked again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery_batch.processes.managed_process import wait_until

__all__ = ["eventually"]


def eventually(ask: Callable[[], Any], timeout: float = 60.0) -> Any:
    """
    Ask until it works out, and return the answer.

    Args:
        ask: Raises an error, say of an assert, as long as it does not.
        timeout: Seconds until the last error is ours.
    """
    found: list[Any] = []

    def why() -> str:
        try:
            found.append(ask())
        except Exception as error:  # noqa: BLE001 (it is told if it is the last one)
            return repr(error)
        return ""

    wait_until(why, [], what="answer", timeout=timeout)
    return found[-1]
