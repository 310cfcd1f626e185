"""Coroutines that run to their end in one go, for servers that have a thread for each request."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

__all__ = ["straight"]

T = TypeVar("T")


def straight(coroutine: Awaitable[T]) -> T:
    """
    Run a coroutine that never suspends, because all it awaits blocks instead.

    So a route is written once, and what differs between a thread and an event loop is
    in `webapp.thread_way` and `webapp.loop_way` alone.

    Args:
        coroutine: Made with a `webapp.thread_way.ThreadWay`.

    Raises:
        RuntimeError: It wants an event loop.
    """
    steps = coroutine.__await__()
    try:
        next(steps)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    raise RuntimeError("a coroutine that should have blocked has suspended")
