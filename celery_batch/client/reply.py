"""What will be heard of one task."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from celery_batch.replies import BatchFacts, read_facts

if TYPE_CHECKING:
    from celery_batch.client.inbox import Inbox

__all__ = ["Reply", "Watcher"]

#: Called once, without arguments, by the thread that heard of the reply.
Watcher = Callable[[], object]


class Reply:
    """
    What will be heard of one task.

    Args:
        inbox: Whose it is.
        task_id: The task's id.
    """

    __slots__ = (
        *("__weakref__", "followers", "inbox", "is_asked", "is_told", "latest", "listeners"),
        *("said", "since", "task_id", "value", "watchers"),
    )

    def __init__(self, inbox: Inbox, task_id: str) -> None:
        self.inbox = inbox
        self.task_id = task_id
        #: Whether this process, or the one it was forked from, has asked for it.
        self.is_asked = False
        #: Whether the message that asked names our channel.
        self.is_told = False
        #: When somebody last looked for it, or asked for it.
        self.since = 0.0
        #: The stored value, still encoded; empty if it is too large to be sent along.
        self.value: bytes | None = None
        #: What was stored before, still encoded, as far as we know; empty once it has gone.
        self.latest: bytes | None = None
        #: What was told of its batch, still encoded, and its own place in that.
        self.said: tuple[bytes, int] | None = None
        #: Called when it comes; as long as there are watchers, it is looked for as well.
        self.listeners: list[Watcher] | None = None
        self.watchers: list[Watcher] | None = None
        #: Called when it comes, or something else is stored; meanwhile it is looked for.
        self.followers: list[Watcher] | None = None

    @property
    def batch(self) -> BatchFacts | None:
        """What was told of its batch, if anything was."""
        said = self.said
        return None if said is None else read_facts(*said)
