"""
Keeps this process from forking while one of its threads connects to a server.

A fork copies the locks that other threads hold, but not those threads: nothing releases
these locks in the child.  OpenSSL and the resolver hold such locks while a thread connects.
A pool process that is forked meanwhile would hang in its own first connection.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["forks_delayed"]

logger = logging.getLogger(__name__)

#: Most seconds for which a fork waits: the worker's event loop stands still meanwhile, and
#: a server that does not answer may keep a thread for longer.
_TIMEOUT = 1.0


class _State:
    """How many threads connect, and how many forks wait for them or are under way."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.connecting = 0
        self.forking = 0


_state = _State()


@contextmanager
def forks_delayed() -> Iterator[None]:
    """Delay forks during this block, in which a thread other than the main one connects."""
    state = _state
    with state.changed:
        state.changed.wait_for(lambda: not state.forking)
        state.connecting += 1
    try:
        yield
    finally:
        with state.changed:
            state.connecting -= 1
            state.changed.notify_all()


def _before() -> None:
    state = _state
    with state.changed:
        state.forking += 1
        if not state.changed.wait_for(lambda: not state.connecting, _TIMEOUT):
            logger.warning("A process is forked while a thread connects, and may hang")


def _after_in_parent() -> None:
    state = _state
    with state.changed:
        state.forking -= 1
        state.changed.notify_all()


def _after_in_child() -> None:
    global _state  # noqa: PLW0603 (its lock may be held by a thread that is not in the child)
    _state = _State()


os.register_at_fork(
    before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
)
