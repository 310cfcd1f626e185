"""Replies to remote control commands that are sent once they are known."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from celery.worker.pidbox import Pidbox
from kombu.pidbox import Node

__all__ = ["DelayedReply", "let_wait"]

logger = logging.getLogger(__name__)

Reply = dict[str, Any]


class DelayedReply:
    """
    A reply to come.

    Args:
        so_far: Says what is so until it is known.
        until: When the asker wants to know in any case, on the monotonic clock.
    """

    def __init__(self, so_far: Callable[[], Reply], until: float) -> None:
        self.so_far = so_far
        self.until = until
        self._known: Reply | None = None
        self._tell: Callable[[Reply], object] | None = None

    @property
    def is_known(self) -> bool:
        """Whether it has been given."""
        return self._known is not None

    def give(self, reply: Reply) -> None:
        """Answer, unless that has been done."""
        if self._known is None:
            self._known = reply
            if self._tell is not None:
                self._tell(reply)

    def then(self, tell: Callable[[Reply], object]) -> None:
        """Have the reply told, now or when it is known."""
        self._tell = tell
        if self._known is not None:
            tell(self._known)


def let_wait(consumer: Any) -> bool:
    """
    Have a consumer's remote control bear with replies that come later.

    Args:
        consumer: Celery's.

    Returns:
        Whether it does.
    """
    boxes = [getattr(step, "box", None) for step in consumer.steps]
    nodes = [box.node for box in boxes if isinstance(box, Pidbox)]
    for node in nodes:
        if "reply" not in vars(node):
            node.reply = partial(_reply, node)
    return bool(nodes)


def _reply(node: Node, data: Reply, **where: Any) -> None:
    ((name, reply),) = data.items()
    if isinstance(reply, DelayedReply):
        reply.then(lambda known: _send_late(node, {name: known}, where))
    else:
        Node.reply(node, data, **where)


def _send_late(node: Node, data: Reply, where: dict[str, Any]) -> None:
    try:
        Node.reply(node, data, **where)
    except Exception as error:  # noqa: BLE001 (who asked may be gone, and the broker too)
        logger.warning("Could not reply %s: %s", data, error)
