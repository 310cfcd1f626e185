"""
Keeps this process from forking while one of its threads connects to a server.

A fork copies the locks that other threads hold at that moment, and none of those threads:
nobody in the child would ever free them.  OpenSSL and the resolver have such locks, which a
thread holds while it connects.  A pool process that is started beside it, in place of one
that has died, would hang in the first connection of its own.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["held_off"]

logger = logging.getLogger(__name__)

#: Most seconds for which a fork waits: a worker's loop stands still meanwhile, and a server
#: that does not answer may keep a thread for longer.
_TIMEOUT = 1.0


class _Gate:
    """How many threads connect, and how many forks wait for them or are under way."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.connecting = 0
        self.forking = 0


_validator = _Gate()


@contextmanager
def held_off() -> Iterator[None]:
    """Connect in this context, on a thread that is not the main one: a fork waits until then."""
    validator = _validator
    with validator.changed:
        validator.changed.wait_for(lambda: not validator.forking)
        validator.connecting += 1
    try:
        yield
    finally:
        with validator.changed:
            validator.connecting -= 1
            validator.changed.notify_all()


def _before() -> None:
    validator = _validator
    with validator.changed:
        validator.forking += 1
        if not validator.changed.wait_for(lambda: not validator.connecting, _TIMEOUT):
            logger.warning("A process is forked while a thread connects, and may hang for that")


def _after_in_parent() -> None:
    validator = _validator
    with validator.changed:
        validator.forking -= 1
        validator.changed.notify_all()


def _after_in_child() -> None:
    global _validator  # noqa: PLW0603 (its lock may be held by a thread that is not here)
    _validator = _Gate()


os.register_at_fork(
    before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
)
