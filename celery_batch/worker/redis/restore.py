"""
Puts messages back into their queues, many at a time.

Kombu watches the whole hash of unacknowledged messages for each message, and starts again
when another worker has changed the hash.  Here one script moves many messages.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps, loads

from celery_batch.compat.kombu import lists_of_message
from celery_batch.protocol import LOSSES
from celery_batch.worker.redis.owner import Keys
from celery_batch.worker.redis.scripts import script

__all__ = ["Restorer"]

logger = logging.getLogger(__name__)

#: Messages in one script; Redis serves no other client meanwhile.
_AT_ONCE = 50

_MOST_EXPIRED = 1000


class Restorer:
    """Puts messages back into their queues."""

    def __init__(self, channel: Any, client: Any, keys: Keys) -> None:
        self._channel = channel
        self._client = client
        self._keys = keys
        self._restore = client.register_script(script("restore"))
        self._find_expired = client.register_script(script("find_expired"))

    def restore(
        self,
        tags: Iterable[str],
        owner: str,  # which must hold them; "" for messages of stock workers
        *,
        lost: Collection[str] = (),  # those that count one more loss
        never_ran: Collection[str] = (),  # those that are not marked as delivered again
        alive: str = "*",  # the value that the owner's `alive` must have, "" for none; "*" for any
        latest: str = "",  # none must have been refreshed since, in Redis' time; "" for any
        command: str = "RPUSH",  # to the front of the queue; LPUSH for its end
        forget_owner: bool = False,  # once it holds nothing more
    ) -> int:
        """Put messages that ``restore.lua`` finds nowhere else back; return how many."""
        conditions = (owner, alive, latest, command, int(forget_owner))
        restored, tags = 0, list(tags)
        for first in range(0, max(len(tags), 1), _AT_ONCE):
            part = tags[first : first + _AT_ONCE]
            entries = self._client.hmget(self._keys.unacked, part) if part else []
            copies = [
                self._copies(entry, is_lost=tag in lost, ran=tag not in never_ran)
                for tag, entry in zip(part, entries, strict=True)
            ]
            count = self._restore_part(part, copies, self._keys.of_owner(owner), conditions)
            if count < 0:  # the owner is alive again
                break
            restored += count
        return restored

    def restore_dead(self, owner: str, alive: str) -> int:
        """Put back a dead worker's messages, and count a loss for those that ran; see `restore`."""
        held = self._client.hgetall(self._keys.of_owner(owner).held)
        ran = {bytes_to_str(tag) for tag, flag in held.items() if flag == b"1"}
        tags = map(bytes_to_str, held)
        return self.restore(tags, owner, lost=ran, alive=alive, forget_owner=True)

    def restore_not_run(self, tags: Sequence[str], owner: str) -> None:
        """Put back, in their order, messages that are not running; most have never run."""
        held = self._client.hmget(self._keys.of_owner(owner).held, tags) if tags else []
        never_ran = {tag for tag, flag in zip(tags, held, strict=True) if flag != b"1"}
        self.restore(reversed(tags), owner, never_ran=never_ran)  # the last one goes first

    def restore_own(self, owner: str) -> int:
        """Put back all messages of one of this worker's connections; none of them was lost."""
        held = self._client.hkeys(self._keys.of_owner(owner).held)
        return self.restore(map(bytes_to_str, held), owner, forget_owner=True)

    def restore_expired(self, timeout: float, most: int | None) -> int:
        """Put back messages not refreshed within the visibility timeout, as kombu does."""
        keys = self._keys
        latest, *found = self._find_expired(
            keys=[keys.index, keys.owner_of],
            args=[timeout, keys.alive_prefix, keys.held_prefix, most or _MOST_EXPIRED],
        )
        by_owner: dict[str, list[str]] = defaultdict(list)
        for tag, owner, _ in found:
            by_owner[bytes_to_str(owner)].append(bytes_to_str(tag))
        ran = {bytes_to_str(tag) for tag, _, flag in found if flag == b"1"}
        latest = bytes_to_str(latest)
        return sum(
            self.restore(tags, owner, lost=ran, latest=latest) for owner, tags in by_owner.items()
        )

    def _restore_part(
        self,
        tags: list[str],
        copies_of_each: list[list[tuple[str, str]] | None],
        keys: Keys,
        conditions: tuple[str | int, ...],
    ) -> int:
        lists: dict[str, int] = {}
        messages: list[Any] = []
        for tag, copies in zip(tags, copies_of_each, strict=True):
            messages += [tag, -1 if copies is None else len(copies)]
            for key, text in copies or ():
                messages += [lists.setdefault(key, len(lists) + 1), text]
        return int(
            self._restore(
                keys=[
                    keys.unacked,
                    keys.index,
                    keys.owner_of,
                    keys.held,
                    keys.alive,
                    keys.due,
                    keys.on_machine,
                    *lists,
                ],
                args=[*conditions, *messages],
            )
        )

    def _copies(
        self, entry: bytes | None, *, is_lost: bool, ran: bool
    ) -> list[tuple[str, str]] | None:
        """Return list and text of each copy of a message to put back; None if it cannot be read."""
        if entry is None:
            return []
        try:
            message, exchange, routing_key = loads(bytes_to_str(entry))
            if ran:
                _mark(message, is_lost=is_lost)
            copies = list(self._addressed(message, exchange, routing_key))
        except self._channel.connection_errors:
            raise
        except Exception:
            logger.exception("Could not return a message to its queue; it stays unacknowledged")
            return None
        return copies or None

    def _addressed(
        self, message: Any, exchange: str, routing_key: str
    ) -> Iterator[tuple[str, str]]:
        for key in lists_of_message(self._channel, message, exchange, routing_key):
            yield key, dumps(message)


def _mark(message: Any, *, is_lost: bool) -> None:
    """Mark a message as delivered again, and count one more loss."""
    headers = message.get("headers")
    if isinstance(headers, dict):
        headers["redelivered"] = True
        if is_lost:
            headers[LOSSES] = _count(headers.get(LOSSES)) + 1
    info = message["properties"].get("delivery_info")
    if isinstance(info, dict):
        info["redelivered"] = True


def _count(value: Any) -> int:
    """Return the count in a header; any other value counts as 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
